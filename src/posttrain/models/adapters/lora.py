"""Translate the config section `lora` into PEFT's LoraConfig."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftConfig, PeftMixedModel, PeftModel, get_peft_model
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from torch import nn

from posttrain.base.text import first_line
from posttrain.errors import ModelError
from posttrain.models.adapters.experts import fused_parameters
from posttrain.models.backend import training_device
from posttrain.models.kernels.fused_lora import FusedLinear
from posttrain.models.quantised import is_quantised

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from posttrain.config.sections.model import LoraConfig


def add_adapter(
    model: "PreTrainedModel", lora: "LoraConfig", new_token_ids: Sequence[int], seed: int
) -> PeftModel | PeftMixedModel:
    """Wrap `model` with a new adapter whose initial weights depend only on `seed`.

    Raises:
        ModelError: the architecture has no default targets, or a named module does not exist.
    """
    config = with_fused_layers(peft_config(model, lora, new_token_ids), model)
    torch.manual_seed(seed)
    try:
        with without_false_alarms():
            return get_peft_model(model, config)
    except ValueError as error:
        if "ParamWrapper" in str(error):
            raise ModelError(
                "lora: PEFT adapts the experts and routers of this model by plain LoRA only; set dropout: 0 and dora: "
                "false, or name only other layers in target_modules"
            ) from error
        raise ModelError(f"lora: {first_line(error)}") from error


def with_fused_layers(config: PeftConfig, model: object) -> PeftConfig:
    """`config` for `model`, with the toolkit's own LoRA layer on a CPU, where it was measured to be faster.

    Quantised layers get PEFT's.
    """
    if isinstance(config, PeftLoraConfig) and training_device().type == "cpu" and not is_quantised(model):
        config._register_custom_module({nn.Linear: FusedLinear})
    return config


def peft_config(model: "PreTrainedModel", lora: "LoraConfig", new_token_ids: Sequence[int]) -> PeftLoraConfig:
    """PEFT's config with every field that matters set; ModelError if it names a module that does not exist."""
    _require_modules(model, "modules_to_save", lora.modules_to_save)
    _require_parameters(model, lora.target_parameters)
    if not isinstance(lora.target_modules, str):
        _require_modules(model, "target_modules", lora.target_modules)
        _require_one_trainer_of_rows(model, lora.target_modules, new_token_ids)
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    saved = lora.as_saved()  # see start.py
    in_full = {name for name in _vocabulary_layers(model) if name in map(_own_name, lora.modules_to_save)}
    return PeftLoraConfig(
        task_type="CAUSAL_LM",
        r=saved.r,
        lora_alpha=saved.alpha,  # pyright: ignore[reportArgumentType]  # PEFT divides it: a float is as good
        lora_dropout=lora.dropout,
        target_modules=_as_peft_targets(model, lora.target_modules),
        target_parameters=list(lora.target_parameters) or None,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        modules_to_save=list(lora.modules_to_save) or None,
        trainable_token_indices=_new_rows(model, new_token_ids, tied, in_full),
        # Otherwise a tied embedding and head would be trained separately and end up as two different matrices.
        ensure_weight_tying=tied and bool(in_full),
        bias="none",
    )


@contextmanager
def without_false_alarms() -> Iterator[None]:
    """PEFT looks for the layers that its own ranks of experts' parameters are for, and warns that there are none."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*_pattern keys did not match any targeted module")
        yield


def _as_peft_targets(model: "PreTrainedModel", targets: "str | tuple[str, ...]") -> str | list[str]:
    if targets != "auto":
        return targets if isinstance(targets, str) else list(targets)
    # PEFT looks the architecture up itself, but not if it has experts.
    kind = type(model.config).model_type
    if kind not in TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING:
        raise ModelError(f"lora.target_modules: auto does not support {kind} models; use all-linear, or name layers")
    return list(TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING[kind])


def _new_rows(
    model: "PreTrainedModel", new_ids: Sequence[int], tied: bool, in_full: set[str]
) -> dict[str, list[int]] | None:
    """Rows of new tokens by layer, to be trained even if the rest of the vocabulary stays frozen."""
    if tied:  # PEFT makes the head follow the embedding
        layers = [] if in_full else _vocabulary_layers(model)[:1]
    else:
        layers = [name for name in _vocabulary_layers(model) if name not in in_full]
    return {name: list(new_ids) for name in layers} if new_ids and layers else None


def _vocabulary_layers(model: "PreTrainedModel") -> list[str]:
    """Last path components of the embedding and the head, in this order."""
    names = {id(module): _own_name(path) for path, module in model.named_modules()}
    return [names[id(layer)] for layer in (model.get_input_embeddings(), model.get_output_embeddings())]


def _own_name(path: str) -> str:
    return path.rsplit(".", 1)[-1]


def _require_modules(model: "PreTrainedModel", key: str, wanted: Sequence[str]) -> None:
    """Refuse a name that matches no module: PEFT ignores it as long as another one matches."""
    paths = [f".{path}" for path, _ in model.named_modules()]
    for name in wanted:
        if not any(path.endswith(f".{name}") for path in paths):
            leaves = (path for path, module in model.named_modules() if not list(module.children()))
            known = ", ".join(sorted({_own_name(path) for path in leaves}))
            fused = sorted({_own_name(path) for path in fused_parameters(model)})
            experts = (
                f"; its experts are the parameters {', '.join(fused)}, for lora.target_parameters" if fused else ""
            )
            raise ModelError(f"lora.{key}: this model has no module {name!r}; it has {known}{experts}")


def _require_parameters(model: "PreTrainedModel", wanted: Sequence[str]) -> None:
    """Refuse a name that matches no parameter, or one that PEFT has no adapter for."""
    shapes = {name: parameter.ndim for name, parameter in model.named_parameters()}
    for name in wanted:
        found = [shapes[path] for path in shapes if f".{path}".endswith(f".{name}")]
        if not found or not all(dimensions in (2, 3) for dimensions in found):
            fused = ", ".join(sorted({_own_name(path) for path in fused_parameters(model)})) or "none"
            raise ModelError(
                f"lora.target_parameters: this model has no parameter {name!r} with two or three dimensions; those of "
                f"its experts: {fused}"
            )


def _require_one_trainer_of_rows(model: "PreTrainedModel", targets: Sequence[str], new_ids: Sequence[int]) -> None:
    """Refuse an adapter on a layer with rows for new tokens: PEFT cannot train both on one layer."""
    twice = [name for name in targets if _own_name(name) in _vocabulary_layers(model)]
    if twice and new_ids:
        raise ModelError(
            f"lora.target_modules: {twice[0]} cannot have an adapter while tokens are added to the vocabulary; "
            "name it in lora.modules_to_save instead"
        )
