"""Whether rows can go through a model as one sequence."""

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from posttrain.base.text import first_line
from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.errors import ModelError
from posttrain.models.backend import autocast_to
from posttrain.models.kernels import recomputed_attention
from posttrain.models.kernels.packing import pack


def is_tried(wanted: bool | None, device: torch.device) -> bool:
    """Whether to pack rows if the model can: `wanted` if given, else on a CPU."""
    return device.type == "cpu" if wanted is None else wanted


def should_pack(wanted: bool | None, model: Any, dtype: torch.dtype, longest: int) -> bool:
    """Whether rows go through the model as one sequence, if `wanted` has it tried.

    Its attention is then replaced by one that takes them.

    Args:
        dtype: what the model computes in.
        longest: tokens of the longest row.

    Raises:
        ModelError: it is wanted, and the model cannot.
    """
    if not is_tried(wanted, model.device):
        return False
    reason = why_not_packed(model, dtype, longest)
    if wanted:
        _refuse_if(reason, model)
    return reason is None


def require_shape(model: Any, dtype: torch.dtype, device: torch.device, longest: int) -> None:
    """Raise ModelError as `should_pack` would on a device, as far as a model without weights tells."""
    _refuse_if(_why_not_by_shape(model, dtype, device, longest), model)


def _refuse_if(reason: str | None, model: Any) -> None:
    if reason is not None:
        raise ModelError(
            f"training.batching: padding_free would be wrong for this model ({model.config.model_type}): {reason}; set "
            "it to by_length"
        )


def why_not_packed(model: Any, dtype: torch.dtype, longest: int) -> str | None:
    """Why the model would not give packed rows the logits of separate ones; None if it does, tried with a few tokens.

    The model's attention is replaced, as `should_pack` does.
    """
    return _why_not_by_shape(model, dtype, model.device, longest) or _why_not_the_same(model, dtype)


def _why_not_by_shape(model: Any, dtype: torch.dtype, device: torch.device, longest: int) -> str | None:
    """What of `why_not_packed` needs no weights."""
    if reason := why_not_by_config(model.config, longest):
        return reason
    if device.type == "cuda" and dtype == torch.float32:
        return "torch's attention for rows of different lengths computes in 16 bits on CUDA"
    if model.config._attn_implementation == "sdpa":
        recomputed_attention.use_in(model)
    if model.config._attn_implementation != recomputed_attention.NAME:
        return f"its attention ({model.config._attn_implementation}) cannot be replaced"
    return None


def why_not_by_config(config: Any, longest: int) -> str | None:
    """Why a model of this config cannot take packed rows of up to `longest` tokens; None if nothing in it says so."""
    try:
        layers = DynamicCache(config=config).layers
    except AttributeError:
        return "its config does not say what its layers are"
    for layer in layers:
        window = getattr(layer, "sliding_window", None)
        if window is None and type(layer) is not DynamicLayer:
            return "some of its layers keep a state that goes from one row to the next"
        if window is not None and window < longest:
            return f"some of its layers see a window of {window} tokens, and rows may have {longest}"
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for each in (rope, *rope.values()):
        if isinstance(each, dict) and each.get("rope_type") in ("dynamic", "longrope"):
            return f"its positions depend on the longest row of a batch (rope_type: {each['rope_type']})"
    for name, value in vars(config.get_text_config()).items():
        if isinstance(value, float) and value > 0 and "att" in name and "drop" in name:
            return f"its attention has dropout ({name}: {value:g})"
    return None


def _why_not_the_same(model: Any, dtype: torch.dtype) -> str | None:
    """Why packed rows do not have the logits of separate ones, tried with a few tokens; None if they do."""
    rows = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 7, 8], [9, 8, 7, 6, 5, 4, 3]], device=model.device)
    labels = torch.full_like(rows, IGNORED_LABEL)
    labels[:, 4:] = 0
    packed = pack(rows, labels, worth_sharing=1)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), autocast_to(dtype, model.device):
            expected = model(input_ids=rows, use_cache=False).logits[:, 4:].float().flatten(0, 1)
            logits = model(input_ids=packed.input_ids, use_cache=False, **packed.inputs()).logits.float()
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, IndexError) as error:
        return f"it does not take them: {first_line(error)}"
    finally:
        model.train(was_training)
    if not expected.isfinite().all():
        return "its logits are not finite"
    found = logits[packed.labels != IGNORED_LABEL]
    if torch.isclose(found, expected, rtol=0.1, atol=0.1 * float(expected.std())).all():
        return None
    return "its logits for a few tokens are not those of separate rows"
