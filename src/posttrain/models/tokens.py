"""Add tokens to a tokenizer, and rows for them to the embeddings.

Many models have more embedding rows than their tokenizer has entries (padding to a round number). Those rows are used
first. The row of a new entry starts as the mean of the earlier entries' rows, in the embedding and in the output head,
so that its logit is average.
"""

import copy
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.chatml import IM_END, IM_START
from posttrain.conversation.encoder import TEMPLATE_FAULTS
from posttrain.conversation.saved_template import without_defaults

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def add_tokens(tokenizer: "PreTrainedTokenizerBase", added: Sequence[str], *, chatml: bool) -> tuple[int, ...]:
    """Add the missing tokens to the tokenizer; return the ids of the new entries, which are consecutive."""
    before = len(tokenizer)
    if chatml:
        known = tokenizer.get_vocab()
        tokenizer.add_special_tokens(
            {"additional_special_tokens": [token for token in (IM_START, IM_END) if token not in known]},
            replace_extra_special_tokens=False,
        )
    tokenizer.add_tokens(list(added))
    return tuple(range(before, len(tokenizer)))


def extend_rows(weight: torch.Tensor, new_ids: Sequence[int]) -> torch.Tensor:
    """Extend the rows of an embedding or head to a vocabulary that grew by `new_ids`.

    Args:
        weight: shape [rows, hidden].

    Returns:
        Shape [max(rows, new_ids[-1] + 1), hidden]: the same rows, with those of `new_ids` set to the mean of the rows
        before them. Depends on the arguments alone, so that loading and merging agree.
    """
    if not new_ids:
        return weight
    trained = weight[: new_ids[0]]
    rows = max(weight.shape[0], new_ids[-1] + 1)
    extended = weight.new_zeros((rows, weight.shape[1]))
    extended[: weight.shape[0]] = weight
    extended[list(new_ids)] = trained.float().mean(dim=0).to(weight.dtype)
    return extended


def extend_model(model: Any, new_ids: Sequence[int]) -> None:
    """Grow the embedding and head of `model` in place for `new_ids`."""
    if not new_ids:
        return
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    weights = [extend_rows(layer.weight.detach(), new_ids) for layer in (embedding, head) if layer is not None]
    if weights[0].shape[0] != embedding.weight.shape[0]:
        model.resize_token_embeddings(weights[0].shape[0], mean_resizing=False)
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    with torch.no_grad():
        for layer, weight in zip((embedding, head), weights, strict=False):
            layer.weight.copy_(weight)


_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")


def training_template(chat: ChatConfig, tokenizer: Any) -> str | None:
    """The chat template if it has generation markers, else TRL's copy of it that has them.

    None for ChatML, and if there is neither. TRL knows the templates of some model families, and a few of its copies
    differ in more than the markers, so callers check that its copy renders the same.
    """
    own = chat.own_template or tokenizer.chat_template
    if chat.template == "chatml" or not isinstance(own, str):
        return None
    if _MARKER.search(own):
        return own
    from jinja2 import TemplateError
    from trl import get_training_chat_template

    defaults, without = without_defaults(own)
    plain = copy.copy(tokenizer)
    plain.chat_template = without
    try:
        marked = get_training_chat_template(plain)
    except (TemplateError, *TEMPLATE_FAULTS):  # a family that TRL does not know, or a template that it cannot render
        return None
    return None if marked is None else defaults + marked
