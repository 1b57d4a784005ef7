"""Grades a file of completions without a server: the same graders, processes and rewards."""

from pathlib import Path

from posttrain.base.files import require_file
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.offline.completion import Completion, Judged, graded_line
from posttrain.dataserver.offline.completions import CompletionFile
from posttrain.dataserver.offline.grading import grade_all
from posttrain.dataserver.offline.output import checked_output, output_lines
from posttrain.dataserver.offline.plan import Plan
from posttrain.dataserver.offline.progress import progress
from posttrain.dataserver.offline.summary import Summary
from posttrain.dataserver.offline.wording import counted, say
from posttrain.dataserver.runtime import Loaded


def grade_file(
    config: DataserverConfig,
    source: Path,
    output: Path | None,
    *,
    iteration: int = 0,
    overwrite: bool = False,
    dry_run: bool = False,
) -> None:
    """Grade the completions of a file, print what came out, and write one line per completion to `output`.

    Args:
        iteration: that of the lines that name none; it decides the stage, and so the weights.
        overwrite: whether an output that is there is replaced.
        dry_run: check everything, and print what would be graded.

    Raises:
        DataError, ConfigError: config, data, completions or output are wrong; told before anything is graded.
    """
    with checked_output(output, [source], config, overwrite=overwrite, dry_run=dry_run):
        _grade_file(config, source, output, iteration, dry_run=dry_run)


def _grade_file(config: DataserverConfig, source: Path, output: Path | None, iteration: int, *, dry_run: bool) -> None:
    """Grade into an output that no other process writes."""
    require_file(source)
    loaded = Loaded.read(config, say)
    completions = CompletionFile(source, loaded, iteration)
    plan = Plan(loaded)
    with progress("checking") as advance:
        for each in completions:
            plan.add(each)
            advance()
    if completions.fault_count:
        left_out = counted(completions.fault_count, "line")
        say(f"left out: {left_out} that cannot be graded, the first: {completions.first_faults[0]}")
    if dry_run:
        plan.show()
        say("nothing was graded (--dry-run)")
        return
    summary = Summary()
    with output_lines(output) as write:

        def done(completion: Completion, judged: Judged) -> None:
            write({"input_line": completion.number, **graded_line(completion, judged)})
            summary.add(completion, judged)

        grade_all(loaded, completions, plan.total, done)
    if output is None:
        summary.show_first()
    summary.show()
    if output is not None:
        say(f"wrote {output}")
