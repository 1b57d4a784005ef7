"""Differences between two runs: config, data, code, packages, hardware and results."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from posttrain.inspect.folders import KeptRun
from posttrain.runs.manifest import changed_values, flatten
from posttrain.runs.metrics import TIMING_KEYS

Kind = Literal["config", "data", "code", "packages", "hardware", "results"]

# Where a run is kept is no part of what it is.
_PLACE = ("run.output_dir", "run.name")
_CODE = ("packages.posttrain-toolkit", "commit", "source")
_TIMES = ("started", "resumed")
# What of the manifest's identity is not in the config; weights are those it started from, or of a reference.
_DATA = ("identity.datasets.", "identity.validation.dataset", "identity.tokenizer", "identity.dataserver")
_WEIGHTS = "identity.weights"
# The rest follows from these, so they are told first.
_FIRST = ("order_hash", "loss", "reward", "eval_loss", "eval_reward")


@dataclass(frozen=True)
class Difference:
    """One value that differs; None where a run has none."""

    kind: Kind
    key: str
    one: Any
    other: Any


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side.

    Attributes:
        final: each number that they came to, without times, in both.
    """

    differences: list[Difference]
    final: dict[str, tuple[Any, Any]]

    @property
    def is_same(self) -> bool:
        """Whether nothing differs but times, and where the runs are kept."""
        return not self.differences and all(one == other for one, other in self.final.values())


def compare(one: KeptRun, other: KeptRun) -> Comparison:
    """Name every difference between two runs."""
    differences = [*_of_configs(one, other), *_of_manifests(one, other), *_of_metrics(one.rows, other.rows)]
    return Comparison(differences, _final(one, other))


def _of_configs(one: KeptRun, other: KeptRun) -> list[Difference]:
    commands = one.manifest["command"], other.manifest["command"]
    found = [Difference("config", "command", *commands)] if commands[0] != commands[1] else []
    changes = changed_values(one.config, other.config)
    return found + [Difference("config", *change) for change in changes if change[0] not in _PLACE]


def _of_manifests(one: KeptRun, other: KeptRun) -> list[Difference]:
    """What stands in the manifests alone; the sections of the config are in their identities once more."""
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
    """The kind of a key of the manifest; None for times, and for what `sections` of the config say too."""
    # The config of held-out rows is called like their digest.
    if key.startswith((*_DATA, _WEIGHTS)) and not key.startswith("identity.validation.dataset."):
        return "data"
    if key in _CODE:
        return "code"
    if key == "python" or key.startswith("packages."):
        return "packages"
    said_by_config = key.startswith("identity.") and key.split(".")[1] in sections
    # `resumed` is a list.
    return None if said_by_config or key.partition("[")[0] in (*_TIMES, "command") else "hardware"


def _files(run: KeptRun, name: str) -> str:
    """The names of the files behind a digest, in brackets."""
    section, _, inner = name.partition(".")
    config = (run.config.get(section) or {}).get(inner)
    names = [Path(path).name for key, path in flatten(config).items() if key.rpartition(".")[2] == "path"]
    return f" ({', '.join(names)})" if names else ""


def _of_metrics(one: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]]) -> list[Difference]:
    """For each metric the first step, of those that both runs did, at which it differs."""
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
    """The lines by their step, and whether they are of the step itself or of an evaluation after it."""
    return {(row["step"], "order_hash" in row): row for row in rows}


def _final(one: KeptRun, other: KeptRun) -> dict[str, tuple[Any, Any]]:
    before, after = _numbers(one), _numbers(other)
    return {key: (before.get(key), after.get(key)) for key in dict.fromkeys([*before, *after])}


def _numbers(run: KeptRun) -> dict[str, Any]:
    """What the run came to; of one that did not end, how far it got."""
    done = {"steps": run.steps[-1]["step"] if run.steps else 0}
    kept = {key: value for key, value in run.result.items() if key not in {*TIMING_KEYS, "directory"}}
    return flatten({**done, **kept})
