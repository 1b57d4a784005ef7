"""Group the rows of a micro-batch into forward passes with little padding and shared prompts.

The answers of a pair differ in length, and a micro-batch has several pairs. Each row is scored on its own, so which
rows share a pass only affects the padding. Both rows of a pair begin with the same prompt; if they go through the model
as one text (prompt, first answer, second answer), it is computed once. The second answer's tokens keep the positions of
their own row and attend only to the prompt and each other, so the results are as if the rows went through the model
separately. Unlike a key-value cache from a pass over the prompt, this needs no extra pass, and activations can be
recomputed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.kernels import recomputed_attention
from posttrain.models.kernels.shared_prompts import attends_to_everything, says_the_same

# How many padding tokens take as long as the overhead of one more pass (SmolLM2-135M, forward and backward).
_COST_OF_A_PASS = {"cpu": 32}
_COST_ELSEWHERE = 4096

# How many entries of an attention matrix take as long as a token without attention (same model, forward and backward);
# in wider models, an entry is relatively cheaper.
_ENTRIES_PER_TOKEN = 2000


@dataclass(frozen=True)
class Text:
    """One sequence for the model: a row of the micro-batch, or two that begin with the same tokens.

    Attributes:
        rows: the row numbers.
        lengths: tokens of each row.
        shared: how many leading tokens of the second row are left out, because the first begins with them too.
    """

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    shared: int = 0

    @property
    def length(self) -> int:
        """The number of tokens computed."""
        return sum(self.lengths) - self.shared


@dataclass(frozen=True)
class Pass:
    """Texts that go through the model together, all padded to `width` tokens."""

    texts: tuple[Text, ...]
    width: int

    @property
    def rows(self) -> list[int]:
        """Its row numbers, in the order of the texts."""
        return [row for text in self.texts for row in text.rows]


def cost_of_a_pass(device: str) -> int:
    """The overhead of one pass, in tokens, on a torch device type."""
    return _COST_OF_A_PASS.get(device, _COST_ELSEWHERE)


def plan_passes(lengths: Sequence[int], cost: int | None, shared: Sequence[int] = ()) -> list[Pass]:
    """The passes that compute the fewest tokens, with `cost` tokens added for each pass; the longest texts come first.

    Args:
        lengths: tokens of each row, shape [rows].
        cost: None to make a single pass in any case.
        shared: how many unlabelled tokens both rows of each pair begin with, shape [pairs]; the rows of pair i are i
            and i + pairs. Empty to join no rows.
    """
    apart = [Text((row,), (length,)) for row, length in enumerate(lengths)]
    passes = _fewest_tokens(apart, cost)
    joined = _joined(apart, shared)
    if not any(text.shared for text in joined):
        return passes
    return min(_fewest_tokens(joined, cost), passes, key=lambda each: _tokens(each, cost or 0))


def _joined(apart: list[Text], shared: Sequence[int]) -> list[Text]:
    """The rows as texts, with both rows of a pair in one text if that is less work."""
    texts = []
    for pair, tokens in enumerate(shared):
        one, other = apart[pair], apart[pair + len(shared)]
        both = Text(one.rows + other.rows, one.lengths + other.lengths, tokens)
        # The mask hides the answers from each other, but their product is still computed; and the half of the matrix
        # above the diagonal cannot be skipped, as it can for a single row.
        entries = both.length**2 - (one.length**2 + other.length**2) // 2
        texts += [both] if tokens * _ENTRIES_PER_TOKEN > entries else [one, other]
    return texts


def _fewest_tokens(texts: list[Text], cost: int | None) -> list[Pass]:
    order = sorted(texts, key=lambda text: -text.length)
    if cost is None:
        return [Pass(tuple(texts), order[0].length)]
    # best[i]: the fewest tokens that compute order[i:]; next_[i]: where the pass that begins at i ends. The first text
    # of a pass is its longest.
    best, next_ = [0] * (len(order) + 1), [0] * len(order)
    for start in reversed(range(len(order))):
        best[start], next_[start] = min(
            (best[end] + (end - start) * order[start].length + cost, end) for end in range(start + 1, len(order) + 1)
        )
    passes, start = [], 0
    while start < len(order):
        passes.append(Pass(tuple(order[start : next_[start]]), order[start].length))
        start = next_[start]
    return passes


def _tokens(passes: Sequence[Pass], cost: int) -> int:
    return sum(len(each.texts) * each.width + cost for each in passes)


def inputs_of(
    each: Pass, input_ids: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Inputs and labels of a pass, of shape [texts, width], and the model's other arguments.

    Those are position ids and an attention mask if rows are joined, else none.

    Args:
        input_ids: of the micro-batch, shape [rows, seq], padded on the right.
        labels: of the same shape; -100 beyond the end of a row.
    """
    if not any(text.shared for text in each.texts):
        return input_ids[each.rows, : each.width], labels[each.rows, : each.width], {}
    owners, columns = (part.to(input_ids.device) for part in _places(each.texts))
    in_common = columns < torch.tensor([[text.shared] for text in each.texts], device=input_ids.device)
    # Padding counts as a row of its own; otherwise it would attend to nothing, which has no mean.
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
    """Whether the model gives two joined rows the same logits as separate ones, tested with a few tokens.

    False if layers see only a window or have a state instead of attention, or if attention is not computed by torch,
    because other implementations read masks differently.
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
