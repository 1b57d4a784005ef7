"""Grades what a journal or a file holds once more, with the graders of a config, and shows what would change."""

from itertools import chain
from pathlib import Path

from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.journal.reader import RowFilter
from posttrain.dataserver.offline.again import Again
from posttrain.dataserver.offline.changes import Changes
from posttrain.dataserver.offline.completion import Judged, graded_line
from posttrain.dataserver.offline.earlier import Earlier, earlier_completions
from posttrain.dataserver.offline.grading import grade_all
from posttrain.dataserver.offline.output import checked_output, output_lines
from posttrain.dataserver.offline.plan import Plan
from posttrain.dataserver.offline.progress import progress
from posttrain.dataserver.offline.wording import say
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import ConfigError


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
    with (
        checked_output(output, [source or config.journal.path], config, overwrite=overwrite, dry_run=dry_run),
        earlier_completions(source, config.journal, chosen) as earlier,
    ):
        loaded = Loaded.read(config, say)
        again = Again(loaded, earlier)
        if dry_run:
            _show_plan(loaded, again)
        else:
            _grade(loaded, again, output)


def _require_order(chosen: RowFilter) -> None:
    first, last = chosen.first_iteration, chosen.last_iteration
    if first is not None and last is not None and first > last:
        raise ConfigError(f"--from-iteration {first} lies after --to-iteration {last}")


def _show_plan(loaded: Loaded, again: Again) -> None:
    plan = Plan(loaded)
    with progress("checking", again.count) as advance:
        for each in again:
            plan.add(each)
            advance()
    if not plan.total:
        raise again.nothing_usable()
    plan.show()
    again.show_left_out()
    say("nothing was graded (--dry-run)")


def _grade(loaded: Loaded, again: Again, output: Path | None) -> None:
    usable = iter(again)
    first = next(usable, None)
    if first is None:
        raise again.nothing_usable()
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

        grade_all(loaded, chain([first], usable), again.count, done)
    changes.show()
    again.show_left_out()
    if output is not None:
        say(f"wrote {output}")
