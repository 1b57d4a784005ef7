"""Differences between two runs: config, data, code, packages, hardware and results."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.inspect.folders import KeptRun
from posttrain.runs.manifest import changed_values, flatten
from posttrain.runs.metrics import TIMING_KEYS

Kind = Literal["config", "data", "code", "packages", "hardware", "results"]

# Where a run is kept is not part of its identity.
_PLACE = ("run.output_dir", "run.name")
_CODE = ("packages.posttrain-toolkit", "commit", "source")
# What happened to a run, not what made it.
_EVENTS = ("started", "resumed", "server_failures", "tracker_failures")
# Parts of the manifest's identity that are not in the config; weights are the initial ones, or a reference's.
_DATA = ("identity.datasets.", "identity.validation.dataset", "identity.tokenizer", "identity.dataserver")
_WEIGHTS = "identity.weights"
# Listed first, since the rest follows from these.
_FIRST = ("order_hash", "loss", "reward", "eval_loss", "eval_reward")


@dataclass(frozen=True)
class Difference:
    """One value that differs; None if a run has none."""

    kind: Kind
    key: str
    one: Any
    other: Any


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        final: the final values of both runs by key, without times.
    """

    differences: list[Difference]
    final: dict[str, tuple[Any, Any]]

    @property
    def is_same(self) -> bool:
        """Whether nothing differs except times and where the runs are kept."""
        return not self.differences and all(one == other for one, other in self.final.values())


def compare(one: KeptRun, other: KeptRun) -> Comparison:
    """List every difference between two runs."""
    differences = [*_of_configs(one, other), *_of_manifests(one, other), *_of_metrics(one.rows, other.rows)]
    return Comparison(differences, _final(one, other))


def _of_configs(one: KeptRun, other: KeptRun) -> list[Difference]:
    commands = one.manifest["command"], other.manifest["command"]
    found = [Difference("config", "command", *commands)] if commands[0] != commands[1] else []
    changes = changed_values(one.config, other.config)
    return found + [Difference("config", *change) for change in changes if change[0] not in _PLACE]


def _of_manifests(one: KeptRun, other: KeptRun) -> list[Difference]:
    """Differences found only in the manifests, whose identities repeat the sections of the config."""
    found: dict[Kind, list[Difference]] = {"data": [], "code": [], "packages": [], "hardware": []}
    sections = one.config.keys() | other.config.keys()
    for key, before, after in changed_values(one.manifest, other.manifest):
        kind = _kind_of(key, sections)
        if kind is not None:
            name = key.removeprefix("identity.")
            told = f"{name}{_files(one, name) or _files(other, name)}" if kind == "data" else name
            found[kind].append(Difference(kind, told, before, after))
    return [difference for differences in found.values() for difference in differences]


def _kind_of(key: str, sections: Collection[str]) -> Kind | None:
    """The kind of a manifest key; None for events, the command, and keys that repeat `sections` of the config."""
    # The config of held-out rows is stored under the same key as their digest.
    if key.startswith((*_DATA, _WEIGHTS)) and not key.startswith("identity.validation.dataset."):
        return "data"
    if key in _CODE:
        return "code"
    if key == "python" or key.startswith(("packages.", "engine.")):
        return "packages"
    said_by_config = key.startswith("identity.") and key.split(".")[1] in sections
    first = re.split(r"[.\[]", key)[0]  # some are lists or mappings
    return None if said_by_config or first in (*_EVENTS, "command") else "hardware"


def _files(run: KeptRun, name: str) -> str:
    """The names of the files behind a digest, in brackets."""
    section, _, inner = name.partition(".")
    config = (run.config.get(section) or {}).get(inner)
    names = [Path(path).name for key, path in flatten(config).items() if key.rpartition(".")[2] == "path"]
    return f" ({', '.join(names)})" if names else ""


def _of_metrics(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> list[Difference]:
    """For each metric, the first step done by both runs at which it differs."""
    before, after = _by_place(one), _by_place(other)
    first: dict[str, tuple[int, Any, Any]] = {}
    for place in sorted(before.keys() & after.keys()):
        for key in before[place].keys() | after[place].keys():
            values = before[place].get(key), after[place].get(key)
            if key not in TIMING_KEYS and values[0] != values[1]:
                first.setdefault(key, (place[0], *values))
    told = sorted(first, key=lambda key: (_FIRST.index(key) if key in _FIRST else len(_FIRST), key))
    return [Difference("results", f"{key}, first at step {first[key][0]}", *first[key][1:]) for key in told]


def _by_place(rows: Sequence[dict[str, Any]]) -> dict[tuple[int, bool], dict[str, Any]]:
    """Metrics lines by (step, whether the line is of the step itself and not of an evaluation after it)."""
    return {(row["step"], "order_hash" in row): row for row in rows}


def _final(one: KeptRun, other: KeptRun) -> dict[str, tuple[Any, Any]]:
    before, after = _numbers(one), _numbers(other)
    return {key: (before.get(key), after.get(key)) for key in dict.fromkeys([*before, *after])}


def _numbers(run: KeptRun) -> dict[str, Any]:
    """The number of steps done and, if the run has ended, its results without times."""
    done = {"steps": run.steps[-1]["step"] if run.steps else 0}
    kept = {key: value for key, value in run.result.items() if key not in {*TIMING_KEYS, "directory"}}
    return flatten({**done, **kept})
