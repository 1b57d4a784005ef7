"""What vLLM cannot do, or would do otherwise than it is asked to and say nothing of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError, ModelError
from posttrain.inference.engine import Sampling
from posttrain.models.location import require_no_pickle

_UNUSABLE = ("rank_pattern", "alpha_pattern", "trainable_token_indices", "lora_bias", "modules_to_save", "use_dora")
"""What vLLM does not look at in an adapter's config (the first four), or refuses."""


def require_plain_logprobs(sampling: Sampling) -> None:
    """ConfigError where log-probabilities are wanted with filters: vLLM's are taken after all of them."""
    filtered = sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0 or sampling.min_p > 0)
    if sampling.logprobs and (filtered or sampling.repetition_penalty != 1):
        raise ConfigError(
            "vLLM tells log-probabilities only after top_p, top_k, min_p and repetition_penalty, but the model's own "
            "are needed: leave these options at their defaults, or use the hf engine"
        )


def require_usable_adapter(folder: Path) -> None:
    """ModelError where `folder` holds no adapter, or one of which vLLM would follow a part."""
    try:
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{folder} has no readable adapter_config.json: {error}") from error
    require_no_pickle(folder, "the adapter")
    if used := unusable_parts(config):
        raise ModelError(f"vLLM cannot use the adapter in {folder}, which has {', '.join(used)}: merge it instead")


def unusable_parts(config: Mapping[str, Any]) -> list[str]:
    """The fields of an adapter's config, as PEFT writes it, for which vLLM cannot use the adapter as it is."""
    return [name for name in _UNUSABLE if config.get(name)]
