"""When commands are killed, and what two of them must have in common in the end."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from faults.forked import After, Ended, Happening, What
from running import metrics

# No shrinking: each try takes seconds, and the operation that is named says enough.
THOROUGH = settings(
    deadline=None,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# They hold times, and paths and names of this very run.
_OF_ONE_RUN = ("config.yaml", "dataserver.json", "manifest.json")
_TIMES = frozenset({"directory", "seconds", "tokens_per_second", "peak_memory_gib"})


def moments(ended: Ended, what: What = "SIGKILL") -> st.SearchStrategy[Happening | After]:
    """Moments of a command that ended like this: each kind of operation is as likely as any other, and one in three is
    drawn by time."""
    counts = Counter(ended.operations)
    at = st.sampled_from(sorted(counts)).flatmap(
        lambda operation: st.builds(Happening, st.just(operation), st.integers(1, counts[operation]), st.just(what))
    )
    # Python and its command line come first, where Ctrl-C has nothing to do with what is tested.
    earliest = 1 if what == "SIGKILL" else 15
    after = st.integers(earliest, 99).map(lambda percent: After(ended.seconds * percent / 100, what))
    return st.one_of(at, at, after)


def may_end(happenings: Sequence[Happening | After], one: Happening | After) -> set[int]:
    """The exit codes of a command that came to its end, or found everything done, before `one` of these happened.

    Nothing comes before the first one, unless it is a matter of time.
    """
    return set() if one is happenings[0] and isinstance(one, Happening) else {0, 2}


def require_same_runs(run: Path, other: Path, *, interrupted: bool = False) -> None:
    """Assert that two folders hold the same run: the same files, and the same in them but for times.

    `interrupted`: an interruption has left checkpoints of its own.
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
    """What is in a run's folder, hidden or not, by its path; for what differs from run to run, that it is there."""
    found = {str(path.relative_to(folder)): _content(path) for path in folder.rglob("*")}
    # Where a checkpoint was written, and not only resumed after the last one, there is the folder it was in, empty.
    return {name: content for name, content in found.items() if name != ".trainer"}


def _content(path: Path) -> Any:
    if not path.is_file() or path.name in _OF_ONE_RUN or path.name == "metrics.jsonl":
        return None
    if path.name in ("result.json", "toolkit_state.json"):
        told = json.loads(path.read_text())
        return {**_without_times(told), "counters": _without_times(told.get("counters", {}))}
    return path.read_bytes()


def _without_times(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in _TIMES}


def contents(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder, hidden or not, by its path; None for folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
