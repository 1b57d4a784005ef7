"""What passes through a model's layers keep and take on this machine, measured at most once a day.

The numbers are kept in the cache folder, named after a hash of all that they depend on.
"""

import platform
import time
from dataclasses import asdict
from importlib.metadata import version

import torch
from pydantic import TypeAdapter, ValidationError

from posttrain.base.cache import cache_dir
from posttrain.base.files import atomic_write_text, described_hash
from posttrain.models.model_shape import ModelShape, TrainedModel
from posttrain.train.cost.shallow_model import KeptBytes, Probe, Seconds

_FORMAT = 1
# The machine may have been busy while it was measured, so the numbers are not kept for longer.
_VALID_SECONDS = 24 * 3600

Measured = tuple[KeptBytes, Seconds | None]
_ENTRY = TypeAdapter(tuple[float, Measured])
"""When it was measured, in seconds since 1970, and the numbers."""


def measured(trained: TrainedModel, shape: ModelShape, device: str, size: tuple[int, int] | None) -> Measured:
    """The bytes that passes keep, and the seconds of passes of this size in rows and tokens, or None without a size."""
    path = cache_dir() / "costs" / f"{_key(trained, shape, device, size)}.json"
    try:
        since, found = _ENTRY.validate_json(path.read_bytes())
        if 0 <= time.time() - since < _VALID_SECONDS:
            return found
    except (OSError, ValidationError):
        pass
    probe = Probe(trained, shape, device)
    kept = probe.kept_bytes()
    seconds = None if size is None else probe.seconds(*size, checkpointing=shape.checkpointing)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, _ENTRY.dump_json((time.time(), (kept, seconds))).decode())
    return kept, seconds


def _key(trained: TrainedModel, shape: ModelShape, device: str, size: tuple[int, int] | None) -> str:
    return described_hash(
        {
            "format": _FORMAT,
            "model": trained.described(),
            "shape": asdict(shape),
            "size": size,
            "machine": [platform.node(), device, torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()],
            "packages": [version(name) for name in ("posttrain-toolkit", "torch", "transformers", "peft")],
        }
    )
