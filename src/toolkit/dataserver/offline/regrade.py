"""Grades what a journal or a file holds once more, with the graders of a config, and shows what would change."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from toolkit.core.jsonl import write_jsonl
from toolkit.core.runs.progress import console
from toolkit.dataserver.config.dataserver import DataserverConfig
from toolkit.dataserver.journal.reader import RowFilter
from toolkit.dataserver.loaded import Loaded
from toolkit.dataserver.offline.earlier import Earlier, read_earlier
from toolkit.dataserver.offline.grade import grade_questions, mean_text
from toolkit.dataserver.questions import Questions
from toolkit.dataserver.samples import Target
from toolkit.dataserver.schemas import GradeItem, GradeResult
from toolkit.errors import DataError

_SHOWN_CHANGES = 10
_SMALLEST_CHANGE = 1e-9


@dataclass(frozen=True)
class Change:
    """A completion with its reward before and now."""

    earlier: Earlier
    dataset: str
    result: GradeResult

    @property
    def size(self) -> float:
        """How far the reward moves; 2 where there is one only before or only now, which counts as more than any."""
        before, now = self.earlier.reward, self.result.reward
        if before is None or now is None:
            return 0.0 if before is now else 2.0
        return abs(now - before)


def regrade(config: DataserverConfig, source: Path | None, output: Path | None, chosen: RowFilter) -> None:
    """Print what would change, and write one line per completion to `output`.

    Args:
        source: an SQLite journal, or a file that toolkit-rl-grade wrote; the config's own journal if None.
        chosen: which rows of a journal are meant.

    Raises:
        DataError, ConfigError: config, data or source are wrong.
    """
    loaded = Loaded.read(config, console.print)
    earlier = list(read_earlier(source, config.journal, chosen))
    usable, targets, skipped = _find_rows(loaded, earlier)
    if not usable:
        raise DataError(f"nothing can be graded again{f': {skipped[0]}' if skipped else ': there are no completions'}")
    questions = Questions(loaded)
    asked = [
        questions.question(target, loaded.sampler.stage_index(each.iteration), _item(each))
        for each, target in zip(usable, targets, strict=True)
    ]
    results = grade_questions(loaded, asked)
    changes = [Change(*each) for each in zip(usable, (target.dataset for target in targets), results, strict=True)]
    _show(changes, skipped)
    if output is not None:
        write_jsonl(output, (_output_line(change) for change in changes))
        console.print(f"wrote {output}")


def _find_rows(loaded: Loaded, earlier: Sequence[Earlier]) -> tuple[list[Earlier], list[Target], list[str]]:
    """Those whose row is still there, their rows, and why the others cannot be graded."""
    usable: list[Earlier] = []
    targets: list[Target] = []
    skipped: list[str] = []
    for each in earlier:
        try:
            if each.completion is None:
                raise DataError("the journal keeps only a part of this completion (journal.max_completion_chars)")
            targets.append(loaded.samples.target(each.sample_id))
            usable.append(each)
        except DataError as error:
            skipped.append(f"{each.place}: {error}")
    return usable, targets, skipped


def _item(earlier: Earlier) -> GradeItem:
    return GradeItem(
        item_id=earlier.place[-200:],
        sample_id=earlier.sample_id,
        completion=earlier.completion or "",
        completion_tokens=earlier.completion_tokens,
        truncated=earlier.truncated,
    )


def _show(changes: Sequence[Change], skipped: Sequence[str]) -> None:
    console.print(_reward_table(changes), soft_wrap=False)
    console.print(_score_table(changes), soft_wrap=False)
    moved = sorted((change for change in changes if change.size > _SMALLEST_CHANGE), key=lambda change: -change.size)
    if moved:
        console.print(f"{len(moved):,} of {len(changes):,} rewards change; the largest changes:")
    else:
        console.print(f"none of {len(changes):,} rewards changes")
    for change in moved[:_SHOWN_CHANGES]:
        before, now = _number(change.earlier.reward), _number(change.result.reward)
        console.print(f"  {change.earlier.place} ({change.earlier.sample_id}): {before} → {now}{_why(change)}")
    if skipped:
        console.print(f"{len(skipped):,} completions cannot be graded again, such as {skipped[0]}")


def _reward_table(changes: Sequence[Change]) -> Table:
    table = Table("data set", "completions", "changed", "mean reward before", "now")
    for name in dict.fromkeys(change.dataset for change in changes):
        own = [change for change in changes if change.dataset == name]
        changed = sum(change.size > _SMALLEST_CHANGE for change in own)
        before, now = (change.earlier.reward for change in own), (change.result.reward for change in own)
        table.add_row(name, f"{len(own):,}", f"{changed:,}", mean_text(before), mean_text(now))
    return table


def _score_table(changes: Sequence[Change]) -> Table:
    table = Table("grader", "mean score before", "now")
    before = dict.fromkeys(name for change in changes for name in change.earlier.scores)
    now = dict.fromkeys(name for change in changes for name in change.result.components)
    for name in dict.fromkeys((*before, *now)):
        old = (change.earlier.scores.get(name) for change in changes)
        new = (change.result.components[name].score for change in changes if name in change.result.components)
        table.add_row(name, mean_text(old), mean_text(new))
    return table


def _number(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:.4f}"


def _why(change: Change) -> str:
    said = [f"{name}: {component.detail}" for name, component in change.result.components.items() if component.detail]
    return f" ({'; '.join(said)[:200]})" if said else ""


def _output_line(change: Change) -> dict[str, object]:
    return {
        "dataset": change.dataset,
        "iteration": change.earlier.iteration,
        **change.result.model_dump(exclude={"item_id"}),
        "reward_before": change.earlier.reward,
        "sample_id": change.earlier.sample_id,
        "completion": change.earlier.completion,
        "completion_tokens": change.earlier.completion_tokens,
        "truncated": change.earlier.truncated,
    }
