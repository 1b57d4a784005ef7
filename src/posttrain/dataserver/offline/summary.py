"""What came out of a grading, as tables and a few lines."""

from collections import Counter
from dataclasses import dataclass, field

from rich.table import Table

from posttrain.base.console import console
from posttrain.dataserver.offline.completion import Completion, Judged
from posttrain.dataserver.offline.reasons import Reasons
from posttrain.dataserver.offline.tables import Mean, table_of, weight_text
from posttrain.dataserver.offline.wording import outcome, say, scores_text
from posttrain.dataserver.schemas import Component, Status

_SHOWN = 20


@dataclass
class _Scores:
    """What one grader said in one stage about one data set."""

    weight: float | None
    scores: Mean = field(default_factory=Mean)
    missing: int = 0

    def add(self, component: Component) -> None:
        self.scores.add(component.score)
        self.missing += component.score is None


@dataclass
class _Group:
    """The completions of one data set in one stage."""

    statuses: Counter[Status] = field(default_factory=Counter)
    rewards: Mean = field(default_factory=Mean)
    graders: dict[str, _Scores] = field(default_factory=dict)


class Summary:
    """Counts completions as they are graded."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}
        self._reasons = Reasons()
        self._first: list[str] = []

    def add(self, completion: Completion, judged: Judged) -> None:
        """Count one in."""
        target, stage, result = judged
        group = self._groups.setdefault((target.dataset, stage), _Group())
        group.statuses[result.status] += 1
        group.rewards.add(result.reward)
        for name, component in result.components.items():
            group.graders.setdefault(name, _Scores(component.weight)).add(component)
        self._reasons.add_result(result, completion.place)
        if len(self._first) < _SHOWN:
            scores = scores_text(result.components) or result.reason
            self._first.append(f"  {completion.place}: {outcome(result.status, result.reward)} ({scores})")

    def show_first(self) -> None:
        """Print a line for each of the first completions."""
        hidden = self._total - len(self._first)
        more = [f"  ... and {hidden:,} more; name an output file to get all"] if hidden else []
        say(*self._first, *more)

    def show(self) -> None:
        """Print it."""
        console.print(self._reward_table(), soft_wrap=False)
        console.print(self._score_table(), soft_wrap=False)
        total = self._total
        without = total - sum(group.rewards.count for group in self._groups.values())
        if without:
            say(f"{without:,} of {total:,} completions have no reward")
        if self._reasons.total:
            say("why scores are missing:", *self._reasons.lines())

    @property
    def _total(self) -> int:
        return sum(group.statuses.total() for group in self._groups.values())

    def _reward_table(self) -> Table:
        columns = ("data set", "stage", "completions", "ok", "abstain", "error", "mean reward")
        return table_of(columns, (_reward_row(*key, group) for key, group in self._groups.items()))

    def _score_table(self) -> Table:
        rows = (
            (*key, name, weight_text([each.weight]), f"{each.missing:,}", str(each.scores))
            for key, group in self._groups.items()
            for name, each in group.graders.items()
        )
        return table_of(("data set", "stage", "grader", "weight", "no score", "mean score"), rows)


def _reward_row(dataset: str, stage: str, group: _Group) -> tuple[str, ...]:
    counts = (group.statuses.total(), *(group.statuses[status] for status in ("ok", "abstain", "error")))
    return (dataset, stage, *(f"{count:,}" for count in counts), str(group.rewards))
