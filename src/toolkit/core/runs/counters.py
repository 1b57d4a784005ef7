"""Counters of a run that survive a resume exactly."""

from dataclasses import asdict, dataclass, field

from toolkit.core.curriculum.order_hash import OrderHash
from toolkit.core.step_plan import StepPlan


@dataclass
class RunCounters:
    """Totals after `step` optimizer steps. `seconds` is time spent in steps, over all sessions."""

    step: int = 0
    rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    order_hash: str = field(default_factory=lambda: OrderHash().state())

    def advance(self, plan: StepPlan, seconds: float) -> None:
        """Count one finished step."""
        self.step += 1
        self.rows += len(plan.draws)
        self.tokens += plan.tokens
        self.trained_tokens += plan.trained_tokens
        self.seconds += seconds
        self.order_hash = OrderHash.from_state(self.order_hash).update(plan.draws)

    def as_dict(self) -> dict[str, object]:
        """For a checkpoint; `RunCounters(**...)` restores it."""
        return asdict(self)
