"""Grades what a journal or a file holds once more, with the graders of a config, and shows what would change."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from toolkit.core.runs.progress import console
from toolkit.dataserver.config.dataserver import DataserverConfig
from toolkit.dataserver.journal.reader import RowFilter
from toolkit.dataserver.loaded import Loaded
from toolkit.dataserver.offline.changes import Changes
from toolkit.dataserver.offline.completion import Judged, graded_line
from toolkit.dataserver.offline.earlier import Earlier, EarlierCompletions, earlier_completions
from toolkit.dataserver.offline.grading import grade_all
from toolkit.dataserver.offline.output import check_output, output_lines
from toolkit.dataserver.offline.plan import Plan
from toolkit.dataserver.offline.reasons import Reasons
from toolkit.errors import ConfigError, DataError


def regrade(
    config: DataserverConfig,
    source: Path | None,
    output: Path | None,
    chosen: RowFilter,
    *,
    overwrite: bool = False,
    dry_run: bool = False,
) -> None:
    """Print what would change, and write one line per completion to `output`; a journal is only read.

    Args:
        source: an SQLite journal, or a file that toolkit-rl-grade wrote; the config's own journal if None.
        chosen: which completions are meant.
        overwrite: whether an output that is there is replaced.
        dry_run: check everything, and print what would be graded.

    Raises:
        DataError, ConfigError: config, data, source or output are wrong; told before anything is graded.
        ServerError: PostgreSQL cannot be reached.
    """
    _require_order(chosen)
    if output is not None:
        check_output(output, [source or config.journal.path], config, overwrite=overwrite)
    with earlier_completions(source, config.journal, chosen) as earlier:
        loaded = Loaded.read(config, console.print)
        skipped = Reasons()
        usable = _usable(loaded, earlier, skipped)
        if dry_run:
            _show_plan(loaded, usable, skipped)
        else:
            _grade(loaded, usable, earlier.count, output, skipped)


def _require_order(chosen: RowFilter) -> None:
    first, last = chosen.first_iteration, chosen.last_iteration
    if first is not None and last is not None and first > last:
        raise ConfigError(f"--from-iteration {first} lies after --to-iteration {last}")


def _usable(loaded: Loaded, earlier: EarlierCompletions, skipped: Reasons) -> Iterator[Earlier]:
    """Those that can be graded again; why the others cannot is counted in `skipped`."""
    for each in earlier:
        reason = _why_not(loaded, each)
        if reason is None:
            yield each
        else:
            skipped.add(reason, each.place)


def _why_not(loaded: Loaded, earlier: Earlier) -> str | None:
    if not earlier.is_whole:
        return "the journal keeps only a part of the completion; see journal.max_completion_chars"
    try:
        loaded.samples.target(earlier.sample_id)
    except DataError:
        dataset = earlier.sample_id.rsplit(":", 2)[0]
        if dataset not in loaded.datasets:
            return f"the config has no data set {dataset!r}"
        return f"its row in the data set {dataset} has changed since, or is gone"
    return None


def _show_plan(loaded: Loaded, usable: Iterator[Earlier], skipped: Reasons) -> None:
    plan = Plan(loaded)
    for each in usable:
        plan.add(each)
    plan.show()
    _show_skipped(skipped)
    console.print("nothing was graded (--dry-run)")


def _grade(loaded: Loaded, usable: Iterator[Earlier], total: int, output: Path | None, skipped: Reasons) -> None:
    first = next(usable, None)
    if first is None:
        raise DataError("\n".join(["nothing can be graded again:", *skipped.lines()]))
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

        grade_all(loaded, chain([first], usable), total, done)
    changes.show()
    _show_skipped(skipped)
    if output is not None:
        console.print(f"wrote {output}")


def _show_skipped(skipped: Reasons) -> None:
    if skipped.total:
        console.print(f"{skipped.total:,} completions cannot be graded again:")
        for line in skipped.lines():
            console.print(line)
