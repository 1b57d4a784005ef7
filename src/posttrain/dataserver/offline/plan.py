"""What would be graded, and how: what a dry run shows."""

from collections import Counter

from posttrain.base.console import console
from posttrain.dataserver.grading.questions import own_plan, stage_plan
from posttrain.dataserver.grading.rewards import GradingPlan
from posttrain.dataserver.offline.completion import Completion, stage_of
from posttrain.dataserver.offline.tables import table_of, weight_text
from posttrain.dataserver.runtime import Loaded


class Plan:
    """Counts completions that are to be graded."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._counts: Counter[tuple[str, str]] = Counter()
        self._plans: dict[tuple[str, str], GradingPlan] = {}

    @property
    def total(self) -> int:
        """How many there are."""
        return self._counts.total()

    def add(self, completion: Completion) -> None:
        """Count one in.

        Raises:
            DataError: it names a row that is not there.
        """
        loaded, target = self._loaded, self._loaded.samples.target(completion.sample_id)
        key = (target.dataset, stage_of(loaded, target, completion.iteration))
        self._counts[key] += 1
        if key not in self._plans:
            stage_index = loaded.sampler.stage_index(completion.iteration)
            held_out, config = target.is_held_out, loaded.config
            self._plans[key] = (
                own_plan(config, target.dataset) if held_out else stage_plan(config, stage_index, target.dataset)
            )

    def show(self) -> None:
        """Print it."""
        rows = ((*key, f"{count:,}", _formula(self._plans[key])) for key, count in self._counts.items())
        console.print(table_of(("data set", "stage", "completions", "reward"), rows), soft_wrap=False)


def _formula(plan: GradingPlan) -> str:
    """The reward as a sum of shares, times its gates."""
    terms = " + ".join(f"{weight_text([share])} {name}" for name, share in plan.weights.items())
    gates = "".join(f" × {name}" for name in plan.gates)
    return f"({terms}){gates}" if gates else terms
