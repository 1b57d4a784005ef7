"""`toolkit-rl-grade`: grade a file of completions without a server, and summarise the results."""

from collections import Counter, defaultdict
from pathlib import Path

from posttrain.base.files import require_file
from posttrain.base.outputs import checked_output, output_lines
from posttrain.base.text import counted
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.offline.completions import Completion, CompletionFile
from posttrain.dataserver.offline.display import (
    Mean,
    Reasons,
    outcome,
    say,
    scores_text,
    show_table,
    weight_text,
)
from posttrain.dataserver.offline.grading import (
    Judged,
    check_all,
    data_files,
    grade_all,
    graded_line,
    show_plan,
)
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import Status

_SHOWN = 20


def grade_file(
    config: DataserverConfig,
    source: Path,
    output: Path | None,
    *,
    iteration: int = 0,
    overwrite: bool = False,
    dry_run: bool = False,
) -> None:
    """Grade the completions of a file, print a summary, and write one line per completion to `output`.

    Args:
        iteration: for lines that name none; it decides the stage, and thus the weights.
        overwrite: whether to replace an existing output.
        dry_run: only check everything and print what would be graded.

    Raises:
        DataError, ConfigError: config, data, completions or output are wrong; raised before anything is graded.
    """
    with checked_output(output, [source, *data_files(config)], overwrite=overwrite, dry_run=dry_run):
        require_file(source)
        loaded = Loaded.read(config, say)
        completions = CompletionFile(source, loaded, iteration)
        planned = check_all(loaded, completions)
        if completions.fault_count:
            left_out = counted(completions.fault_count, "line")
            say(f"left out: {left_out} that cannot be graded, the first: {completions.first_faults[0]}")
        if dry_run:
            show_plan(loaded, planned)
            say("nothing was graded (--dry-run)")
        else:
            _grade(loaded, completions, planned.total(), output)


def _grade(loaded: Loaded, completions: CompletionFile, total: int, output: Path | None) -> None:
    summary = Summary()
    with output_lines(output) as write:

        def done(completion: Completion, judged: Judged) -> None:
            write({"input_line": completion.number, **graded_line(completion, judged)})
            summary.add(completion, judged)

        grade_all(loaded, completions, total, done)
    if output is None:
        summary.show_first()
    summary.show()
    if output is not None:
        say(f"wrote {output}")


class Summary:
    """Counts completions as they are graded, by data set and stage."""

    def __init__(self) -> None:
        self._statuses: defaultdict[tuple[str, str], Counter[Status]] = defaultdict(Counter)
        self._rewards: defaultdict[tuple[str, str], Mean] = defaultdict(Mean)
        self._scores: defaultdict[tuple[str, str, str, str], Mean] = defaultdict(Mean)
        """By data set, stage, grader and weight."""
        self._reasons = Reasons()
        self._first: list[str] = []

    def add(self, completion: Completion, judged: Judged) -> None:
        """Add a graded completion."""
        target, stage, result = judged
        self._statuses[target.dataset, stage][result.status] += 1
        self._rewards[target.dataset, stage].add(result.reward)
        for name, component in result.components.items():
            self._scores[target.dataset, stage, name, weight_text([component.weight])].add(component.score)
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
        """Print the tables, and why scores are missing."""
        show_table(
            ("data set", "stage", "completions", "ok", "abstain", "error", "mean reward"),
            (
                (*key, found.total(), found["ok"], found["abstain"], found["error"], self._rewards[key])
                for key, found in self._statuses.items()
            ),
        )
        show_table(
            ("data set", "stage", "grader", "weight", "no score", "mean score"),
            ((*key, scores.missing, scores) for key, scores in self._scores.items()),
        )
        without = sum(rewards.missing for rewards in self._rewards.values())
        if without:
            say(f"{without:,} of {self._total:,} completions have no reward")
        if self._reasons.total:
            say("why scores are missing:", *self._reasons.lines())

    @property
    def _total(self) -> int:
        return sum(statuses.total() for statuses in self._statuses.values())
