"""The load-balancing loss of a model's routers in an optimizer step."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator

from posttrain.models.kernels.packing import row_lengths
from posttrain.models.kernels.router_balance import RouterBalance
from posttrain.train.parallel.ranks import summed
from posttrain.train.state import TrainState


@dataclass
class RouterTerms:
    """What the routers add to the loss of each micro-batch; nothing if their loss is not counted.

    Attributes:
        tokens: tokens of the step that count, over all ranks.
        found: Σ tokens · loss of each micro-batch so far, without gradient.
    """

    routers: RouterBalance | None
    accelerator: Accelerator
    tokens: float = 0.0
    found: list[torch.Tensor] = field(default_factory=list)

    @classmethod
    def of(cls, state: TrainState, labels: Iterable[torch.Tensor]) -> "RouterTerms":
        """The terms of a step, of whose micro-batches on this rank these are the labels; all ranks call it together."""
        terms = cls(state.loaded.routers, state.accelerator)
        if terms.routers is not None:
            counts = torch.stack([row_lengths(each).sum() for each in labels]).sum().double()
            terms.tokens = float(summed(state.accelerator, counts))
        return terms

    def term(self) -> torch.Tensor | float:
        """The part of the loss that is due to the routers in the micro-batch that was just computed."""
        if self.routers is None:
            return 0.0
        loss = self.routers.take()
        self.found.append(loss.detach().double())
        return self.routers.coefficient * loss / self.tokens

    def mean(self) -> float | None:
        """The loss, weighted by tokens, over all passes of the step on all ranks, without its coefficient."""
        if self.routers is None:
            return None
        return float(summed(self.accelerator, torch.stack(self.found).sum())) / self.tokens
