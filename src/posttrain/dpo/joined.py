"""Two rows that begin with the same prompt as one text in which the prompt stands once.

It is prompt, first answer, second answer. The second answer's tokens have the positions of their own row, and see the
prompt and each other, so that every number is as if the rows went through the model apart. Unlike keys and values that
are kept from a pass over the prompt, it takes no pass more, and activations can be recomputed.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.dpo.passes import Pass, Text
from posttrain.models.kernels import recomputed_attention
from posttrain.models.kernels.mask_probe import attends_to_everything, says_the_same


def inputs_of(
    each: Pass, input_ids: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Inputs and labels of a pass, of shape [texts, width], and what else the model takes: where rows are joined, their
    positions and an attention mask.

    Args:
        input_ids: of the micro-batch, shape [rows, seq], padded on the right.
        labels: of the same shape; -100 behind the end of a row.
    """
    if not any(text.shared for text in each.texts):
        return input_ids[each.rows, : each.width], labels[each.rows, : each.width], {}
    owners, columns = (part.to(input_ids.device) for part in _places(each.texts))
    in_common = columns < torch.tensor([[text.shared] for text in each.texts], device=input_ids.device)
    # What pads a text is a row of its own, or it would see nothing, of which there is no mean.
    seen = (owners.unsqueeze(1) == owners.unsqueeze(2)) | in_common.unsqueeze(1)
    wanted = labels[owners, columns].masked_fill(owners < 0, IGNORED_LABEL)
    return input_ids[owners, columns], wanted, {"position_ids": columns, "attention_mask": seen.tril().unsqueeze(1)}


def _places(texts: Sequence[Text]) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column in the micro-batch of each token, both of shape [texts, width]; −1 and 0 for padding."""
    owners, columns = [], []
    for text in texts:
        starts = [0, *[text.shared] * (len(text.rows) - 1)]
        parts = [torch.arange(start, length) for start, length in zip(starts, text.lengths, strict=True)]
        columns.append(torch.cat(parts))
        owners.append(torch.cat([torch.full_like(part, row) for part, row in zip(parts, text.rows, strict=True)]))
    return pad_sequence(owners, batch_first=True, padding_value=-1), pad_sequence(columns, batch_first=True)


def takes_joined_rows(model: Any) -> bool:
    """Whether the model says of two joined rows what it says of each: asked, with a few tokens.

    One whose layers see a window only, or have a state in the place of attention, does not; nor does one whose
    attention is not computed by torch, as others read masks in other ways.
    """
    if model.config._attn_implementation not in ("sdpa", recomputed_attention.NAME):
        return False
    if not attends_to_everything(model):
        return False
    rows = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 8, 9, 10, 11]], device=model.device)
    both = Text((0, 1), (8, 8), shared=4)
    ids, _, inputs = inputs_of(Pass((both,), both.length), rows, torch.full_like(rows, IGNORED_LABEL))
    return says_the_same(
        model,
        lambda: model(input_ids=rows, use_cache=False).logits[:, 4:],
        lambda: model(input_ids=ids, use_cache=False, **inputs).logits[:, 4:],
    )
