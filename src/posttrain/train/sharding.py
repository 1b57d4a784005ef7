"""What `accelerate launch` was told to cut into pieces, one for each rank: the model, which no trainer of the toolkit
knows, or the optimizer's states."""

import json
import os
from pathlib import Path

from posttrain.base.processes import process_count
from posttrain.errors import ConfigError

_YES = {"1", "true", "yes", "on", "y", "t"}


def require_whole_model(command: str) -> None:
    """Raise ConfigError where the model would be cut: FSDP, or DeepSpeed's ZeRO-3."""
    if _is_set("ACCELERATE_USE_FSDP"):
        kind = "FSDP"
    elif _zero_stage() == 3:
        kind = "DeepSpeed ZeRO-3"
    else:
        return
    raise ConfigError(
        f"{kind} was asked for by accelerate launch, and {command} cannot train a model that is sharded over ranks; "
        "launch with torchrun, where each rank has the whole model, and make it small enough by a lora section and "
        "model.quantization"
    )


def launched_as() -> int | str:
    """How many processes train together, and what DeepSpeed does for them, if anything: for a run's identity.

    Checkpoints of ZeRO have the optimizer's states in files of their own, and transformers goes on from a checkpoint
    that lacks the files it looks for as if nothing had been in them.
    """
    stage = _zero_stage()
    return process_count() if stage is None else f"{process_count()}, by DeepSpeed ZeRO-{stage}"


def _zero_stage() -> int | None:
    """Of DeepSpeed's own config file where there is one; 2 as accelerate has it where nothing is said; None without."""
    if not _is_set("ACCELERATE_USE_DEEPSPEED"):
        return None
    stage: object = os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", 2)
    file = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    if file and file != "none":
        stage = json.loads(Path(file).read_text(encoding="utf-8")).get("zero_optimization", {}).get("stage", 0)
    return int(str(stage))


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").lower() in _YES
