"""Say which parts of a model with experts are trained: an adapter on its layers may leave the experts as they are."""

import re
from collections.abc import Iterator
from typing import Any

from peft.tuners.lora import ParamWrapper
from torch import nn

from posttrain.models.weights.checkpoint import TRAINED_ADAPTER

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_NUMBER = re.compile(r".*\.\d+\.")


def has_experts(config: Any) -> bool:
    """Whether transformers' config of a model gives it experts."""
    return any(getattr(config.get_text_config(), name, None) for name in _COUNTS)


def fused_parameters(model: Any) -> dict[str, Any]:
    """The parameters with all experts of a layer in one tensor, by their names in the bare model."""
    found = {}
    convolutions = {id(module.weight) for module in model.modules() if isinstance(module, nn.Conv1d)}
    for name, parameter in model.named_parameters():
        if parameter.ndim == 3 and id(parameter) not in convolutions:
            bare = name.removeprefix("base_model.model.").replace("base_layer.", "")
            found[bare] = parameter
    return found


def experts_in_words(model: Any, *, quantised: bool) -> str:
    """Which experts and routers of a model with experts are trained, and how; the same parts of layers once.

    `quantised`: whether the base is loaded by bitsandbytes, which quantises linear layers only.
    """
    adapted = dict(sorted(_adapted(model)))
    fused = {_NUMBER.sub("", name): each.requires_grad for name, each in fused_parameters(model).items()}
    parts = [f"LoRA on {', '.join(f'{name} (r={rank})' for name, rank in adapted.items())}"] if adapted else []
    if in_full := sorted(name for name, is_trained in fused.items() if is_trained):
        parts.append(f"{', '.join(in_full)} trained in full")
    if frozen := sorted(name for name, is_trained in fused.items() if not is_trained and name not in adapted):
        parts.append(f"{', '.join(frozen)} frozen (lora.target_parameters would train them)")
    if quantised and fused:
        parts.append("the experts are not quantised: bitsandbytes does that to linear layers only")
    return "; ".join(parts)


def _adapted(model: Any) -> Iterator[tuple[str, int]]:
    """Names of the parameters with an adapter of their own, within a layer, and its rank."""
    for name, module in model.named_modules():
        if isinstance(module, ParamWrapper):
            bare = name.removesuffix(".base_layer")
            yield f"{_NUMBER.sub('', bare)}.{module.parameter_name}", module.r[TRAINED_ADAPTER]
