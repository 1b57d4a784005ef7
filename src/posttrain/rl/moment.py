"""Where a trainer stands before a step has changed anything."""

from dataclasses import dataclass

import torch
from transformers import TrainerState


@dataclass(frozen=True)
class Moment:
    """What a step changes before the weights: torch's random numbers, and the count of tokens."""

    cpu: torch.Tensor
    cuda: torch.Tensor | None
    tokens: int

    @classmethod
    def now(cls, state: TrainerState) -> "Moment":
        """As it is."""
        cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
        return cls(torch.get_rng_state(), cuda, int(state.num_input_tokens_seen))

    def restore(self, state: TrainerState) -> None:
        """Make it so again."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda)
        state.num_input_tokens_seen = self.tokens
