"""What a step's numbers depend on besides its inputs: the device, found without importing torch, and the base model."""

import os
from pathlib import Path

from posttrain.config.sections.model import ModelConfig
from posttrain.models.location import PACKAGED, hub_commit, locate_model, weights_digest

_FAST_16_BIT = ("avx512_bf16", "amx_bf16")


def device_facts() -> dict[str, str]:
    """The device that torch would choose, as far as it changes which results are equal."""
    names = [_named(folder / "information") for folder in sorted(Path("/proc/driver/nvidia/gpus").glob("*"))]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names and visible != "":
        count = len(names) if visible is None else len(visible.split(","))
        return {"device": "cuda", "accelerators": ", ".join(sorted({*names})), "count": str(count)}
    flags = _cpu_flags()
    return {"device": "cpu", "16 bits": "fast" if any(flag in flags for flag in _FAST_16_BIT) else "slow"}


def _named(file: Path) -> str:
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")), "unknown")


def _cpu_flags() -> frozenset[str]:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
    return frozenset(next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), []))


def packaged_or_hub(model: ModelConfig) -> str | None:
    """The digest of a packaged model, or the commit of one on a hub; None for a path, whose files are hashed.

    Raises:
        ModelError: the packaged model is not installed, or the name is none.
    """
    if model.name.startswith("/"):
        return None
    if model.name in PACKAGED:
        return weights_digest(model.model_copy(update={"adapter": None}))
    return hub_commit(locate_model(model.name).path, model.revision)
