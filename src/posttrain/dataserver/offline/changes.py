"""What would change if completions were graded anew, as tables and a few lines."""

import heapq
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from rich.table import Table

from posttrain.base.console import console
from posttrain.dataserver.offline.completion import Judged
from posttrain.dataserver.offline.earlier import Earlier
from posttrain.dataserver.offline.reasons import Reasons
from posttrain.dataserver.offline.tables import Mean, table_of, weight_text
from posttrain.dataserver.offline.wording import outcome, say, scores_text
from posttrain.dataserver.schemas import Component, GradeResult

_SHOWN = 10
_SMALLEST = 1e-9


@dataclass
class _Rewards:
    """Those of one data set."""

    completions: int = 0
    changed: int = 0
    before: Mean = field(default_factory=Mean)
    now: Mean = field(default_factory=Mean)


@dataclass
class _Side:
    """What one grader said of one data set, before or now."""

    scores: Mean = field(default_factory=Mean)
    weights: set[float | None] = field(default_factory=set)

    def add(self, component: Component) -> None:
        self.scores.add(component.score)
        self.weights.add(component.weight)


class Changes:
    """Counts completions as they are graded anew."""

    def __init__(self) -> None:
        self._rewards: dict[str, _Rewards] = {}
        self._graders: dict[tuple[str, str], tuple[_Side, _Side]] = {}
        self._kinds: Counter[str] = Counter()
        self._order = count()
        self._largest: list[tuple[float, int, str]] = []
        self._reasons = Reasons()

    def add(self, earlier: Earlier, judged: Judged) -> None:
        """Count one in."""
        dataset, result = judged.target.dataset, judged.result
        for side, components in enumerate((earlier.components, result.components)):
            for name, component in components.items():
                self._graders.setdefault((dataset, name), (_Side(), _Side()))[side].add(component)
        rewards = self._rewards.setdefault(dataset, _Rewards())
        rewards.completions += 1
        rewards.before.add(earlier.reward)
        rewards.now.add(result.reward)
        self._reasons.add_result(result, earlier.place)
        kind = kind_of_change(earlier, result)
        if kind is not None:
            rewards.changed += 1
            self._kinds[kind] += 1
            self._remember(earlier, result)

    def show(self) -> None:
        """Print it."""
        console.print(self._reward_table(), soft_wrap=False)
        console.print(self._score_table(), soft_wrap=False)
        total = sum(each.completions for each in self._rewards.values())
        changed = self._kinds.total()
        if not changed:
            say(f"none of {total:,} completions changes")
        else:
            kinds = ", ".join(f"{number:,} {kind}" for kind, number in self._kinds.most_common())
            say(f"{changed:,} of {total:,} completions change: {kinds}", "the largest changes:")
            say(*(f"  {line}" for _, _, line in sorted(self._largest, reverse=True)))
        if self._reasons.total:
            say("why scores are missing now:", *self._reasons.lines())

    def _remember(self, earlier: Earlier, result: GradeResult) -> None:
        before, now = earlier.reward, result.reward
        # One that comes or goes counts as more than any that moves.
        size = 2.0 if before is None or now is None else abs(now - before)
        # Of changes as large as each other the first ones are kept.
        entry = (size, -next(self._order))
        if len(self._largest) < _SHOWN:
            heapq.heappush(self._largest, (*entry, _described(earlier, result)))
        elif entry > self._largest[0][:2]:
            heapq.heapreplace(self._largest, (*entry, _described(earlier, result)))

    def _reward_table(self) -> Table:
        columns = ("data set", "completions", "changed", "ok\nbefore", "\nnow", "reward\nbefore", "\nnow")
        return table_of(columns, (_reward_row(dataset, each) for dataset, each in self._rewards.items()))

    def _score_table(self) -> Table:
        rows = (
            (*key, weight_text(before.weights), weight_text(now.weights), str(before.scores), str(now.scores))
            for key, (before, now) in self._graders.items()
        )
        return table_of(("data set", "grader", "weight\nbefore", "\nnow", "score\nbefore", "\nnow"), rows)


def _reward_row(dataset: str, each: _Rewards) -> tuple[str, ...]:
    counts = (each.completions, each.changed, each.before.count, each.now.count)
    return (dataset, *(f"{count:,}" for count in counts), str(each.before), str(each.now))


def kind_of_change(earlier: Earlier, result: GradeResult) -> str | None:
    """How a completion fares otherwise than before; None where it does not."""
    if earlier.status != result.status:
        return f"from {earlier.status} to {result.status}"
    before, now = earlier.reward, result.reward
    if before is None or now is None or abs(now - before) <= _SMALLEST:
        return None
    return "with a higher reward" if now > before else "with a lower reward"


def _described(earlier: Earlier, result: GradeResult) -> str:
    before, now = outcome(earlier.status, earlier.reward), outcome(result.status, result.reward)
    why = scores_text(result.components, earlier.components)
    return f"{earlier.place} ({earlier.sample_id}): {before} → {now}{f': {why}' if why else ''}"
