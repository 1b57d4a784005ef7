"""When to inject faults into commands, and how to compare the runs they leave."""

import json
import re
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from faults.forked import After, Ended, Happening, What
from posttrain.rl.rollout.replay.store import INDEX
from running import metrics

# No shrinking: each example takes seconds, and the operation it names says enough.
THOROUGH = settings(
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# These hold times, paths and names specific to one run.
_OF_ONE_RUN = ("config.yaml", "dataserver.json", "manifest.json", "waits.png")
# Folders with groups of completions.
_WITH_GRADES = ("rollouts", "replay", "successes")
_TIMES = frozenset({"directory", "seconds", "tokens_per_second", "peak_memory_gib"})


def moments(ended: Ended, what: What = "SIGKILL") -> st.SearchStrategy[Happening | After]:
    """Faults for a command that ends like this: one in three is timed, the others draw each kind of operation equally
    often."""
    counts = Counter(ended.operations)
    at = st.sampled_from(sorted(counts)).flatmap(
        lambda operation: st.builds(Happening, st.just(operation), st.integers(1, counts[operation]), st.just(what))
    )
    # Ctrl-C while Python starts and parses the command line is not what is tested.
    earliest = 1 if what == "SIGKILL" else 15
    after = st.integers(earliest, 99).map(lambda percent: After(ended.seconds * percent / 100, what))
    return st.one_of(at, at, after)


def may_end(happenings: Sequence[Happening | After], one: Happening | After) -> set[int]:
    """The exit codes allowed if the command may finish, or find everything done, before fault `one` of `happenings`.

    None are allowed for the first fault, unless it is timed.
    """
    return set() if one is happenings[0] and isinstance(one, Happening) else {0, 2}


def require_same_runs(run: Path, other: Path, *, interrupted: bool = False) -> None:
    """Assert that two folders hold the same run: the same files with the same contents, except for times.

    `interrupted`: ignore checkpoints, because an interruption saves extra ones.
    """
    assert metrics(run) == metrics(other)
    one, two = (_compared(folder) for folder in (run, other))
    if interrupted:
        one, two = (
            {name: it for name, it in each.items() if not name.startswith("checkpoint-")} for each in (one, two)
        )
    differing = sorted(name for name in one.keys() | two.keys() if one.get(name, ...) != two.get(name, ...))
    assert not differing, differing


def _compared(folder: Path) -> dict[str, Any]:
    """The contents of a run's folder by path, hidden files included; None for files that differ between runs."""
    found = {str(path.relative_to(folder)): _content(path) for path in folder.rglob("*")}
    # An empty .trainer folder is left only if this process wrote a checkpoint, not if it resumed after the last one.
    # Logs tell what each attempt did, and when.
    return {name: content for name, content in found.items() if name.split("/")[0] not in (".trainer", "logs")}


def _content(path: Path) -> Any:
    if not path.is_file() or path.name in (*_OF_ONE_RUN, "metrics.jsonl"):
        return None
    if path.name == INDEX:
        with closing(sqlite3.connect(path)) as index:
            return index.execute(
                "select step, kind, generation, slot, attempt, entry from events order by number"
            ).fetchall()
    if path.parent.name in _WITH_GRADES and path.suffix == ".json":
        return re.sub(r'"(ms|digest)":("\w+"|[\d.e-]+)', "", path.read_text())  # how long grading took
    if path.name in ("result.json", "toolkit_state.json"):
        told = json.loads(path.read_text())
        return {**_without_times(told), "counters": _without_times(told.get("counters", {}))}
    return path.read_bytes()


def _without_times(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in _TIMES}


def contents(folder: Path) -> dict[str, bytes | None]:
    """The contents of a folder by path, hidden files included; None for folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
