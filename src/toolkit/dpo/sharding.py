"""Launches that cut a model into pieces, one for each rank, which preference training does not know."""

import json
import os
from pathlib import Path

from toolkit.errors import ConfigError

_YES = {"1", "true", "yes", "on", "y", "t"}


def require_whole_model() -> None:
    """Raise ConfigError where `accelerate launch` was told to shard the model: FSDP, or DeepSpeed's ZeRO-3.

    The log-probabilities of the reference, its weights and their digest are taken from a model that is whole.
    """
    if _is_set("ACCELERATE_USE_FSDP"):
        kind = "FSDP"
    elif _is_set("ACCELERATE_USE_DEEPSPEED") and _zero_stage() == 3:
        kind = "DeepSpeed ZeRO-3"
    else:
        return
    raise ConfigError(
        f"{kind} was asked for by accelerate launch, and toolkit-dpo cannot train a model that is sharded over ranks; "
        "launch with torchrun, where each rank has the whole model, and make it small enough by a lora section and "
        "model.quantization"
    )


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in _YES


def _zero_stage() -> int:
    """Of DeepSpeed's own config file where there is one; 2 as accelerate has it where nothing is said."""
    stage: object = os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2)
    file = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    if file and file != "none":
        stage = json.loads(Path(file).read_text(encoding="utf-8")).get("zero_optimization", {}).get("stage", 0)
    return int(str(stage))
