"""What vLLM would do otherwise than it is asked to, and say nothing of it."""

import json
from pathlib import Path

from toolkit.errors import ConfigError, ModelError
from toolkit.inference.engine import Sampling

_PASSED_OVER = ("rank_pattern", "alpha_pattern", "trainable_token_indices", "lora_bias")
"""What vLLM does not look at in an adapter's config."""


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
    if used := [name for name in _PASSED_OVER if config.get(name)]:
        raise ModelError(f"vLLM cannot use the adapter in {folder}, which has {', '.join(used)}: merge it instead")
