"""Measure which share of each group's tokens is beyond the limits of the importance correction."""

from collections.abc import Sequence

import torch
from accelerate import Accelerator

from posttrain.train.parallel.ranks import summed


class MaskedShares:
    """Counts the tokens of an optimizer step by slot; a group may be divided among micro-batches and ranks."""

    def __init__(self, slots: int) -> None:
        """`slots`: groups per optimizer step."""
        self._counts = torch.zeros(slots, 2, dtype=torch.float64)

    def add(self, slots: Sequence[int], beyond: torch.Tensor, mask: torch.Tensor) -> None:
        """Count completions.

        Args:
            slots: of each completion, within the step.
            beyond: which tokens are beyond the limits, bool [completions, tokens].
            mask: which tokens count, same shape.
        """
        counts = torch.stack([(beyond & mask).sum(dim=1), mask.sum(dim=1)], dim=1).double()
        self._counts = self._counts.to(counts.device).index_add(0, torch.tensor(slots, device=counts.device), counts)

    def over_all_ranks(self, accelerator: Accelerator) -> list[float]:
        """The share of each slot's tokens, 0 if none was counted; all ranks call it together."""
        counts = summed(accelerator, self._counts.to(accelerator.device))
        return (counts[:, 0] / counts[:, 1].clamp(min=1)).tolist()
