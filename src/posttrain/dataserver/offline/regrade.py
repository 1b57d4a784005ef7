"""`toolkit-rl-regrade`: grade a journal or a file again with other graders, and show the changes."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from heapq import nlargest
from pathlib import Path

from posttrain.base.outputs import checked_output, output_lines
from posttrain.base.text import counted
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.journal.reader import RowFilter
from posttrain.dataserver.journal.records import MAX_PROMPT_CHARS, storable, without_middle
from posttrain.dataserver.offline.display import (
    Mean,
    Reasons,
    outcome,
    say,
    scores_text,
    show_table,
    weight_text,
)
from posttrain.dataserver.offline.earlier import Earlier, earlier_completions
from posttrain.dataserver.offline.grading import (
    Judged,
    check_all,
    data_files,
    grade_all,
    graded_line,
    show_plan,
)
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import GradeResult
from posttrain.errors import ConfigError, DataError

_SHOWN_CHANGES = 10
_SMALLEST_CHANGE = 1e-9

_Weights = set[float | None]


def regrade(
    config: DataserverConfig,
    source: Path | None,
    output: Path | None,
    chosen: RowFilter,
    *,
    overwrite: bool = False,
    dry_run: bool = False,
) -> None:
    """Grade completions again, print what changes, and write one line per completion to `output`.

    A journal is only read.

    Args:
        source: an SQLite journal, or a file that toolkit-rl-grade wrote; the config's own journal if None.
        chosen: which completions to grade again.
        overwrite: whether to replace an existing output.
        dry_run: only check everything and print what would be graded.

    Raises:
        DataError, ConfigError: config, data, source or output are wrong; raised before anything is graded.
        ServerError: PostgreSQL cannot be reached.
    """
    first, last = chosen.first_iteration, chosen.last_iteration
    if first is not None and last is not None and first > last:
        raise ConfigError(f"--from-iteration {first} is after --to-iteration {last}")
    with (
        checked_output(
            output, [source or config.journal.path, *data_files(config)], overwrite=overwrite, dry_run=dry_run
        ),
        earlier_completions(source, config.journal, chosen) as (count, earlier),
    ):
        loaded = Loaded.read(config, say)
        usable = _Usable(loaded, earlier)
        if dry_run:
            show_plan(loaded, check_all(loaded, usable, count))
            usable.show_left_out()
            say("nothing was graded (--dry-run)")
            return
        changes = Changes()
        with output_lines(output) as write:

            def done(earlier: Earlier, judged: Judged) -> None:
                changes.add(earlier, judged)
                before = {
                    "status_before": earlier.status,
                    "reward_before": earlier.reward,
                    "scores_before": {name: component.score for name, component in earlier.components.items()},
                }
                write({"place": earlier.place, **graded_line(earlier, judged), **before})

            grade_all(loaded, usable, count, done)
        changes.show()
        usable.show_left_out()
        if output is not None:
            say(f"wrote {output}")


class _Usable:
    """The completions that can be graded again; those left out are counted."""

    def __init__(self, loaded: Loaded, earlier: Iterator[Earlier]) -> None:
        self._loaded = loaded
        self._earlier = earlier
        self._changed_rows = 0
        self._skipped = Reasons()

    def __iter__(self) -> Iterator[Earlier]:
        """Each with the current sample id of its row; DataError at the end, with the reasons, if there are none."""
        is_empty = True
        for each in self._earlier:
            try:
                again = _as_it_is_now(self._loaded, each)
            except DataError as error:
                self._skipped.add(str(error), each.place)
                continue
            self._changed_rows += again is not each
            is_empty = False
            yield again
        if is_empty:
            raise DataError("\n".join(["nothing can be graded again:", *self._skipped.lines()]))

    def show_left_out(self) -> None:
        """Print how many completions were left out, and how many were graded by rows that have changed."""
        if self._changed_rows:
            answers = counted(self._changed_rows, "completion")
            say(f"graded by rows that have changed since, except for their prompt: {answers}")
        if self._skipped.total:
            left_out = counted(self._skipped.total, "completion")
            say(f"left out: {left_out} that cannot be graded again", *self._skipped.lines())


def _as_it_is_now(loaded: Loaded, earlier: Earlier) -> Earlier:
    """The completion with the current sample id of its row, which e.g. a corrected gold changes.

    Raises:
        DataError: the completion was not kept whole, or its data set or row is gone, or the row asks something else.
    """
    if not earlier.is_whole:
        raise DataError("only part of the completion was stored; see journal.max_completion_chars")
    dataset, key, _ = ["", "", *earlier.sample_id.rsplit(":", 2)][-3:]
    if dataset not in loaded.datasets:
        raise DataError(f"the config has no data set {dataset!r}")
    index = loaded.datasets[dataset].find(key)
    if index is None:
        raise DataError(f"its row in the data set {dataset} no longer exists")
    sample_id = loaded.samples.sample_id(dataset, index)
    if sample_id == earlier.sample_id:
        return earlier
    prompt = loaded.samples.target(sample_id).prompt
    if earlier.prompt not in (prompt, storable(without_middle(prompt, MAX_PROMPT_CHARS))):
        raise DataError(f"its row in the data set {dataset} now has a different prompt")
    return replace(earlier, sample_id=sample_id)


class Changes:
    """Counts completions as they are graded again; pairs are (before, now)."""

    def __init__(self) -> None:
        # By data set.
        self._rewards = defaultdict[str, tuple[Mean, Mean]](lambda: (Mean(), Mean()))
        self._changed = Counter[str]()
        # By data set and grader.
        self._scores = defaultdict[tuple[str, str], tuple[Mean, Mean]](lambda: (Mean(), Mean()))
        self._weights = defaultdict[tuple[str, str], tuple[_Weights, _Weights]](lambda: (set(), set()))
        self._kinds = Counter[str]()
        self._largest: list[tuple[float, int, str]] = []
        self._reasons = Reasons()

    def add(self, earlier: Earlier, judged: Judged) -> None:
        """Add a graded completion."""
        dataset, result = judged.target.dataset, judged.result
        for side, (reward, components) in enumerate(
            [(earlier.reward, earlier.components), (result.reward, result.components)]
        ):
            self._rewards[dataset][side].add(reward)
            for name, component in components.items():
                self._scores[dataset, name][side].add(component.score)
                self._weights[dataset, name][side].add(component.weight)
        self._reasons.add_result(result, earlier.place)
        kind = kind_of_change(earlier, result)
        if kind is not None:
            self._changed[dataset] += 1
            self._kinds[kind] += 1
            self._remember(earlier, result)

    def _remember(self, earlier: Earlier, result: GradeResult) -> None:
        before, now = outcome(earlier.status, earlier.reward), outcome(result.status, result.reward)
        why = scores_text(result.components, earlier.components)
        line = f"  {earlier.place} ({earlier.sample_id}): {before} → {now}{f': {why}' if why else ''}"
        # A reward that appears or disappears outranks any that moves; among equal changes the first are kept.
        size = 2.0 if earlier.reward is None or result.reward is None else abs(result.reward - earlier.reward)
        self._largest = nlargest(_SHOWN_CHANGES, [*self._largest, (size, -self._kinds.total(), line)])

    def show(self) -> None:
        """Print the tables, the largest changes, and why scores are missing."""
        show_table(
            ("data set", "completions", "changed", "ok\nbefore", "\nnow", "reward\nbefore", "\nnow"),
            (
                (dataset, now.count + now.missing, self._changed[dataset], before.count, now.count, before, now)
                for dataset, (before, now) in self._rewards.items()
            ),
        )
        show_table(
            ("data set", "grader", "weight\nbefore", "\nnow", "score\nbefore", "\nnow"),
            ((*key, *map(weight_text, self._weights[key]), *scores) for key, scores in self._scores.items()),
        )
        total = sum(now.count + now.missing for _, now in self._rewards.values())
        if not self._kinds:
            say(f"none of {total:,} completions changed")
        else:
            kinds = ", ".join(f"{number:,} {kind}" for kind, number in self._kinds.most_common())
            say(f"{self._kinds.total():,} of {total:,} completions changed: {kinds}", "the largest changes:")
            say(*(line for _, _, line in self._largest))
        if self._reasons.total:
            say("why scores are missing now:", *self._reasons.lines())


def kind_of_change(earlier: Earlier, result: GradeResult) -> str | None:
    """How the result of a completion changed; None if it did not."""
    if earlier.status != result.status:
        return f"from {earlier.status} to {result.status}"
    before, now = earlier.reward, result.reward
    if before is None or now is None or abs(now - before) <= _SMALLEST_CHANGE:
        return None
    return "with a higher reward" if now > before else "with a lower reward"
