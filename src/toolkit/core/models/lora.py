"""From our LoRA section to PEFT's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftMixedModel, PeftModel, get_peft_model

from toolkit.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from toolkit.core.config.lora import LoraConfig


def add_adapter(
    model: "PreTrainedModel", lora: "LoraConfig", new_token_ids: Sequence[int], seed: int
) -> PeftModel | PeftMixedModel:
    """Wrap `model` with a new adapter whose start depends on `seed` alone.

    Raises:
        ModelError: the architecture has no default targets, or a named module does not exist.
    """
    torch.manual_seed(seed)
    try:
        return get_peft_model(model, peft_config(model, lora, new_token_ids))
    except ValueError as error:
        raise ModelError(f"lora: {str(error).splitlines()[0]}") from error


def peft_config(model: "PreTrainedModel", lora: "LoraConfig", new_token_ids: Sequence[int]) -> PeftLoraConfig:
    """PEFT's config, every field that matters set here."""
    tied = bool(getattr(model.config, "tie_word_embeddings", False))
    vocabulary_layers = {"embed_tokens", "lm_head"} & set(lora.modules_to_save)
    return PeftLoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]  # PEFT divides it: a float is as good
        lora_dropout=lora.dropout,
        # None lets PEFT look the architecture up in its own table.
        target_modules=None if lora.target_modules == "auto" else _as_peft_targets(lora.target_modules),
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        modules_to_save=list(lora.modules_to_save) or None,
        trainable_token_indices=None if vocabulary_layers else _new_rows(model, new_token_ids, tied),
        # Without it a tied embedding and head would be trained apart and come out as two different matrices.
        ensure_weight_tying=tied and bool(vocabulary_layers or new_token_ids),
        bias="none",
    )


def _as_peft_targets(targets: "str | tuple[str, ...]") -> str | list[str]:
    return targets if isinstance(targets, str) else list(targets)


def _new_rows(model: "PreTrainedModel", new_ids: Sequence[int], tied: bool) -> dict[str, list[int]] | None:
    """The rows of new tokens are trained even where the rest of the vocabulary stays frozen."""
    if not new_ids:
        return None
    layers = [model.get_input_embeddings()] if tied else [model.get_input_embeddings(), model.get_output_embeddings()]
    names = {id(module): name.rsplit(".", 1)[-1] for name, module in model.named_modules()}
    return {names[id(layer)]: list(new_ids) for layer in layers}
