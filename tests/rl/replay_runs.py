"""Runs of 8 steps that replay groups, and comparisons of two of them."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from rl.rl_runs import folder_of, lines, write_run
from running import metrics

RESERVED: dict[str, Any] = {"replay": {"share": 0.5, "fill": "reserved"}}
AHEAD: dict[str, Any] = {
    "replay": {"share": {"0": 0, "2": 0.5}, "max_uses": 1, "choose": "recent"},
    "successes": {"threshold": 0.5, "share": 1.0},
    "filters": [{"kind": "mean_reward", "max": 0.5}],
    "rejected": "substitute",
    "over_sampling": 1.5,
    "staleness": 1,
    "threads": 1,
}


def write(folder: Path, model: Path, rollout: dict[str, Any], **changes: Any) -> Path:
    return write_run(folder, model, rollout=rollout, evaluation=None, **changes)


def events(config: Path, store: str = "replay") -> list[tuple[Any, ...]]:
    """What became of each stored group, and at which step."""
    with closing(sqlite3.connect(folder_of(config) / store / "index.sqlite")) as index:
        query = "select step, kind, generation, slot, attempt, entry from events order by number"
        return index.execute(query).fetchall()


def require_same(one: Path, other: Path) -> None:
    """Assert that two runs have the same metrics, completions, stored groups and weights."""
    a, b = folder_of(one), folder_of(other)
    assert metrics(a) == metrics(b)
    assert lines(a / "completions.jsonl") == lines(b / "completions.jsonl")
    assert events(one) == events(other)
    assert (a / "adapter_model.safetensors").read_bytes() == (b / "adapter_model.safetensors").read_bytes()


def require_limits(config: Path, max_age: int, max_uses: int, staleness: int) -> None:
    """Assert from the events that no group was used too often or too late, and none after it was given up."""
    uses: dict[tuple[int, ...], int] = {}
    for step, kind, *key, _ in events(config):
        group = tuple(key)
        if kind == "stored":
            uses[group] = 0
        elif kind == "evicted":
            del uses[group]
        elif kind == "used":
            uses[group] += 1
            assert uses[group] <= max_uses
            version = max(0, group[0] - staleness)
            assert 0 < step - 1 - version <= max_age
