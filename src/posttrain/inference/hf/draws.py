"""Draw the next token of each row with random numbers of its own, so that a sample does not depend on its batch.

It also takes a tenth of the time of `torch.multinomial`, which draws a random number for each token of the vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from posttrain.errors import RunError
from posttrain.inference.engine import Sampling

# Tokens whose probabilities are added up first. Then only those of one such block are gone through one by one.
_BLOCK = 256


class Draws(LogitsProcessor):
    """Draws a token for each row, and leaves `generate` no other. Must be the last of the processors."""

    def __init__(self, sampling: Sampling, generators: Sequence[np.random.Generator]) -> None:
        """`generators` are those of the rows; a temperature of 0 is not for this."""
        self._generators = generators
        self._filters = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
        if sampling.top_k > 0:
            self._filters.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            self._filters.append(TopPLogitsWarper(sampling.top_p))
        if sampling.min_p > 0:
            self._filters.append(MinPLogitsWarper(sampling.min_p))

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Take ids of shape [rows, seq] and logits of shape [rows, vocabulary]; return 0 where drawn, else −∞.

        Raises:
            RunError: a logit is not a number, or infinite at this temperature.
        """
        numbers = torch.tensor([each.random() for each in self._generators], dtype=torch.float64, device=scores.device)
        probabilities = self._filters(input_ids, scores).float().softmax(-1)
        if not probabilities[:, 0].isfinite().all():  # one logit that is no number makes all of its row none
            raise RunError("probabilities are not finite; are the weights damaged, or does the dtype not fit?")
        drawn = draw(probabilities, numbers)
        return torch.full_like(scores, float("-inf")).scatter_(1, drawn.unsqueeze(1), 0.0)


def seeded(seed: int) -> np.random.Generator:
    """The random numbers of a completion."""
    return np.random.Generator(np.random.PCG64(seed))


def draw(probabilities: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The token of each row at which the sum of the probabilities up to it exceeds the row's number.

    Args:
        probabilities: shape [rows, vocabulary]; they need not add up to 1 exactly.
        numbers: in [0, 1), in float64, shape [rows].

    Returns:
        Shape [rows]; no token has a probability of 0.
    """
    rows, vocabulary = probabilities.shape
    blocks = pad(probabilities, (0, -vocabulary % _BLOCK)).view(rows, -1, _BLOCK)
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    wanted = numbers.unsqueeze(1) * ends[:, -1:]
    block = _first_beyond(ends, wanted)
    within = blocks[torch.arange(rows, device=block.device), block.squeeze(1)].double().cumsum(-1)
    place = _first_beyond(within, wanted - pad(ends, (1, 0)).gather(1, block))
    return (block * _BLOCK + place).squeeze(1)


def _first_beyond(sums: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The place of the first sum above `wanted`; of the first that is the whole sum if rounding leaves none above."""
    whole = (sums < sums[:, -1:]).sum(-1, keepdim=True)
    return torch.minimum(torch.searchsorted(sums, wanted, right=True), whole)
