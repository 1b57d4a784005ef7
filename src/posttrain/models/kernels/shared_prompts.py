"""Compute once the prompt that several rows share.

The completions of a group answer one prompt, so its keys and values are the same in every row. Instead of the whole
rows, one pass takes the prompt, cut into pieces as wide as the longest completion, and each row from the prompt's last
token on: for n rows with a prompt of P tokens, (n − 1)·(P − 1) tokens are not computed. In attention, a row sees the
pieces of its prompt, and a piece sees those before it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.kernels import recomputed_attention
from posttrain.models.kernels.compiled_layers import as_written
from posttrain.models.kernels.frozen_head import Scores
from posttrain.models.kernels.labelled_head import LabelledHead

# The extra cost of the wider attention, in tokens of a micro-batch (SmolLM2-135M on a CPU, forward and backward).
_WORTH_IT = 64


class SharedPrompts:
    """Scores the rows of a micro-batch, computing shared prompts once if that is less work.

    Sharing needs a model whose layers all attend to everything before them, through torch's attention; with any other
    model, rows are scored whole.
    """

    def __init__(self, head: LabelledHead, model: Any) -> None:
        """`model` is the one that `head` is attached to; its attention is replaced by one that supports prefixes."""
        self._head = head
        self._can_share = _takes_prefixes(model)

    def scores(
        self,
        model: Any,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        *,
        temperatures: torch.Tensor | None = None,
        entropies: bool = False,
    ) -> Scores:
        """Like `LabelledHead.scores`; rows that share a prompt must be adjacent."""
        options: dict[str, Any] = {"temperatures": temperatures, "entropies": entropies}
        layout = _layout(labels, _shared_by_row(input_ids, labels)) if self._can_share else None
        if layout is None or layout.tokens + _WORTH_IT > input_ids.numel():
            return self._head.scores(model, input_ids, labels, **options)
        # The rows come after the pieces, in their original order, and so do their labels.
        ids, wanted = layout.cut(input_ids, 0), layout.cut(labels, IGNORED_LABEL)
        wanted[: layout.pieces] = IGNORED_LABEL
        return self._head.scores(model, ids, wanted, **layout.inputs(), **options)


@dataclass(frozen=True)
class _Layout:
    """Pieces of prompts, followed by the rows, all `width` tokens wide.

    Attributes:
        source: row of the micro-batch that each is cut from, shape [pieces + rows].
        positions: positions of their tokens in the whole rows, shape [pieces + rows, width].
        prefixes: pieces that each sees before itself, shape [pieces + rows, most]; any piece where there are fewer.
        seen: number of tokens of each of these, 0 where there are fewer, of the same shape.
        pieces: number of pieces.
    """

    source: torch.Tensor
    positions: torch.Tensor
    prefixes: torch.Tensor
    seen: torch.Tensor
    pieces: int

    @property
    def tokens(self) -> int:
        """Number of tokens that are computed."""
        return self.positions.numel()

    def cut(self, values: torch.Tensor, padding: int) -> torch.Tensor:
        """Cut `values`, of shape [rows, seq], into this layout, with `padding` beyond the end of the rows."""
        end = values.shape[1]
        found = values[self.source.unsqueeze(1), self.positions.clamp(max=end - 1)]
        return found.masked_fill(self.positions >= end, padding)

    def inputs(self) -> dict[str, torch.Tensor]:
        """Inputs of the model besides the tokens."""
        width = self.positions.shape[1]
        device = self.positions.device
        before = torch.arange(width, device=device) < self.seen.unsqueeze(-1)
        before = before.flatten(1).unsqueeze(1).expand(-1, width, -1)
        own = torch.ones(width, width, dtype=torch.bool, device=device).tril().expand(len(before), -1, -1)
        mask = torch.cat([before, own], dim=2).unsqueeze(1)
        return {"position_ids": self.positions, "attention_mask": mask, "prefix_rows": self.prefixes}


def _layout(labels: torch.Tensor, shared: list[tuple[int, int]]) -> _Layout | None:
    """The layout of rows; `shared` gives the first row with the same prompt and the number of shared tokens per row."""
    if not any(tokens for _, tokens in shared):
        return None
    lengths = _lengths(labels)
    width = max(length - tokens for length, (_, tokens) in zip(lengths, shared, strict=True))
    pieces: dict[int, list[int]] = {}  # piece numbers, by the row that the prompt is taken from
    source, starts, prefixes = [], [], []
    for first, tokens in dict.fromkeys(shared):
        for start in range(0, tokens, width):
            prefixes.append(list(pieces.setdefault(first, [])))
            pieces[first].append(len(source))
            source.append(first)
            starts.append(start)
    ends = [min(start + width, dict(shared)[row]) for row, start in zip(source, starts, strict=True)]
    for row, (first, tokens) in enumerate(shared):
        prefixes.append(pieces.get(first, []) if tokens else [])
        source.append(row)
        starts.append(tokens)
    most = max(map(len, prefixes))
    seen = [[ends[piece] - starts[piece] for piece in each] + [0] * (most - len(each)) for each in prefixes]
    device = labels.device
    return _Layout(
        source=torch.tensor(source, device=device),
        positions=torch.tensor(starts, device=device).unsqueeze(1) + torch.arange(width, device=device),
        prefixes=torch.tensor([each + [0] * (most - len(each)) for each in prefixes], device=device),
        seen=torch.tensor(seen, device=device),
        pieces=len(ends),
    )


def _shared_by_row(input_ids: torch.Tensor, labels: torch.Tensor) -> list[tuple[int, int]]:
    """For each row, the first of its neighbours with the same tokens up to the first label, and how many are shared.

    That number is 0 for a row without such neighbours.
    """
    firsts = (labels != IGNORED_LABEL).int().argmax(dim=1).tolist()
    prompts = [tuple(ids[: first + 1].tolist()) for ids, first in zip(input_ids, firsts, strict=True)]
    shared = []
    for prompt, rows in groupby(range(len(prompts)), key=prompts.__getitem__):
        alike = list(rows)
        # The last token of a prompt predicts the first one of a completion, so each row keeps it.
        shared += [(alike[0], len(prompt) - 1 if len(alike) > 1 else 0)] * len(alike)
    return shared


def _lengths(labels: torch.Tensor) -> list[int]:
    """Number of tokens of each row up to its last label, at least 1."""
    places = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    return (places * (labels != IGNORED_LABEL)).amax(dim=1).clamp(min=1).tolist()


def _takes_prefixes(model: Any) -> bool:
    """Whether the model gives two rows with a shared prompt the same logits as whole rows, tried with a few tokens."""
    if not attends_to_everything(model):
        return False
    if model.config._attn_implementation == "sdpa":
        recomputed_attention.use_in(model)
    if model.config._attn_implementation != recomputed_attention.NAME:
        return False
    rows = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 7, 8]], device=model.device)
    labels = torch.full_like(rows, IGNORED_LABEL)
    labels[:, 4:] = 0
    layout = _layout(labels, _shared_by_row(rows, labels))
    assert layout is not None
    ids, inputs, first = layout.cut(rows, 0), layout.inputs(), layout.pieces
    return says_the_same(
        model,
        lambda: model(input_ids=rows, use_cache=False).logits[:, 4:],
        lambda: model(input_ids=ids, use_cache=False, **inputs).logits[first:],
    )


def attends_to_everything(model: Any) -> bool:
    """Whether all layers see every earlier token; one with a sliding window, or a state instead, does not."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def says_the_same(model: Any, plain: Callable[[], torch.Tensor], changed: Callable[[], torch.Tensor]) -> bool:
    """Whether two ways of calling `model` give the same logits up to rounding; False if a call fails."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), as_written(model):
            expected = plain().float()
            found = changed().float().view_as(expected)
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, IndexError):
        return False  # this model does not accept such a mask
    finally:
        model.train(was_training)
    return bool(torch.isclose(found, expected, rtol=0.1, atol=0.1 * float(expected.std())).all())
