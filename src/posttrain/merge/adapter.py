"""The LoRA adapter in a folder: its config, and its tensors, which are read one at a time."""

from dataclasses import dataclass
from pathlib import Path

from peft import LoraConfig, PeftConfig

from posttrain.errors import ModelError
from posttrain.merge.shards import StoredTensor, stored_tensors

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

# Ways to start an adapter that also change the base weights below it, so that the saved base is not the one
# that the adapter was trained on.
_CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class Adapter:
    """`tensors` by their names in the file."""

    folder: Path
    config: LoraConfig
    tensors: dict[str, StoredTensor]


def open_adapter(folder: Path) -> Adapter:
    """The adapter in `folder`.

    Raises:
        ModelError: there is none, or it is of a kind that cannot be folded into weights.
    """
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise ModelError(f"{folder} has no {name}, so it is not a LoRA adapter that can be merged")
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"cannot read {folder / CONFIG_FILE}: {error}") from error
    if not isinstance(config, LoraConfig):
        raise ModelError(f"the adapter in {folder} is of type {config.peft_type}; only LoRA can be merged")
    start = config.init_lora_weights
    if isinstance(start, str) and start.startswith(_CHANGES_THE_BASE):
        raise ModelError(
            f"the adapter in {folder} was started by {start}, which changed the base weights too; save it with "
            "PEFT's path_initial_model_for_weight_conversion and merge the result"
        )
    return Adapter(folder, config, stored_tensors(folder / WEIGHTS_FILE))
