"""Counters of a run that survive a resume exactly."""

from dataclasses import asdict, dataclass, field

from posttrain.data.curriculum.order_hash import OrderHash
from posttrain.data.step_plan import StepPlan


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
        """Count one finished step of a plan."""
        order_hash = OrderHash.from_state(self.order_hash).update(plan.draws)
        self.count(len(plan.draws), plan.tokens, plan.trained_tokens, seconds, order_hash)

    def count(self, rows: int, tokens: int, trained_tokens: int, seconds: float, order_hash: str) -> None:
        """Count one finished step, after which all rows so far have this hash."""
        self.step += 1
        self.rows += rows
        self.tokens += tokens
        self.trained_tokens += trained_tokens
        self.seconds += seconds
        self.order_hash = order_hash

    def as_dict(self) -> dict[str, object]:
        """For a checkpoint; `RunCounters(**...)` restores it."""
        return asdict(self)
