"""Compute a prompt once that several rows begin with.

The completions of a group answer one prompt, so its keys and values are the same in every row. They are computed in a
pass of their own, with gradient, repeated for the rows, and each row's pass begins at the prompt's last token: of n
rows with a prompt of P tokens, (n − 1)·(P − 1) are not computed.
"""

from itertools import groupby
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from toolkit.core.masks import IGNORED_LABEL
from toolkit.core.training.frozen_head import Scores
from toolkit.core.training.labelled_head import LabelledHead

# A pass more costs as much as so many tokens (SmolLM2-135M on a CPU, forwards and backwards).
_WORTH_A_PASS = 64


class SharedPrompts:
    """Scores the rows of a micro-batch, those of one prompt together where that is less work.

    It takes a model whose layers all attend to everything before them; through any other all rows go as they are.
    """

    def __init__(self, head: LabelledHead, model: Any, *, allowed: bool = True) -> None:
        """`model`: the one that `head` is attached to. `allowed`: say no where its passes must not be more or fewer
        than those of other processes, or where gradient checkpointing keeps no keys and values."""
        self._head = head
        self._can_share = allowed and _continues_from_its_cache(model)

    def scores(
        self, model: Any, input_ids: torch.Tensor, labels: torch.Tensor, *, temperature: float, entropies: bool
    ) -> Scores:
        """As `LabelledHead.scores`; rows that share a prompt stand next to each other."""
        options = {"temperature": temperature, "entropies": entropies}
        groups = _groups(input_ids, labels) if self._can_share else []
        alone = sorted(set(range(len(input_ids))).difference(*groups))
        if len(alone) == len(input_ids):
            return self._head.scores(model, input_ids, labels, **options)
        found = [(rows, self._scores_of_group(model, *_cut(input_ids, labels, rows), options)) for rows in groups]
        if alone:
            found.append((alone, self._head.scores(model, *_cut(input_ids, labels, alone), **options)))
        mask = labels != IGNORED_LABEL
        chosen = _in_order(mask, [(rows, scores[0]) for rows, scores in found])
        spread = [(rows, scores[1]) for rows, scores in found if scores[1] is not None]
        return chosen, _in_order(mask, spread) if entropies else None

    def _scores_of_group(
        self, model: Any, input_ids: torch.Tensor, labels: torch.Tensor, options: dict[str, Any]
    ) -> Scores:
        shared, cache = _shared_tokens(labels[0]), DynamicCache(config=model.config)
        prompt = input_ids[:1, :shared]
        nothing = torch.full_like(prompt, IGNORED_LABEL)
        self._head.scores(model, prompt, nothing, use_cache=True, past_key_values=cache)
        cache.batch_repeat_interleave(len(input_ids))
        rest = input_ids[:, shared:], labels[:, shared:]
        return self._head.scores(model, *rest, use_cache=True, past_key_values=cache, **options)


def _groups(input_ids: torch.Tensor, labels: torch.Tensor) -> list[list[int]]:
    """Neighbouring rows with the same tokens up to their first label, where they are worth a pass of their own."""
    prompts = [tuple(ids[: _shared_tokens(wanted) + 1].tolist()) for ids, wanted in zip(input_ids, labels, strict=True)]
    alike = [list(rows) for _, rows in groupby(range(len(prompts)), key=prompts.__getitem__)]
    return [rows for rows in alike if (len(rows) - 1) * (len(prompts[rows[0]]) - 1) >= _WORTH_A_PASS]


def _cut(input_ids: torch.Tensor, labels: torch.Tensor, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of some rows, as wide as the last label of them."""
    places = (labels[rows] != IGNORED_LABEL).nonzero()[:, 1]
    width = int(places.max()) + 1 if len(places) else 1
    return input_ids[rows, :width], labels[rows, :width]


def _in_order(mask: torch.Tensor, found: list[tuple[list[int], torch.Tensor]]) -> torch.Tensor:
    """The numbers of all rows where `mask` is true, in row-major order, from those of some rows each."""
    placed = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
    for rows, of_rows in found:
        theirs = torch.zeros_like(mask)
        theirs[rows] = mask[rows]
        placed = placed.masked_scatter(theirs, of_rows)
    return placed[mask]


def _shared_tokens(labels: torch.Tensor) -> int:
    """Tokens of a row's prompt without its last, which already predicts a completion; `labels` are of shape [seq]."""
    return int((labels != IGNORED_LABEL).int().argmax())


def _continues_from_its_cache(model: Any) -> bool:
    """Whether the model says of the second half of a text what it says of the whole: asked, with a few tokens."""
    ids = torch.arange(8, device=model.device).unsqueeze(0)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            whole = model(input_ids=ids, use_cache=False).logits[:, 4:]
            cache = DynamicCache(config=model.config)
            model(input_ids=ids[:, :4], use_cache=True, past_key_values=cache)
            plain = all(type(layer) is DynamicLayer for layer in cache.layers)
            rest = model(input_ids=ids[:, 4:], use_cache=True, past_key_values=cache).logits
    except (TypeError, ValueError, RuntimeError, AttributeError, NotImplementedError):
        return False  # this model takes no cache that it has not made itself
    finally:
        model.train(was_training)
    return plain and bool(torch.isclose(rest.float(), whole.float(), rtol=0.1, atol=0.1 * float(whole.std())).all())
