"""A loaded model with a short way to ask it."""

from dataclasses import dataclass
from typing import Any

from posttrain.inference.engine import Completion, GenerationRequest, Sampling
from posttrain.inference.hf import HfEngine

END = frozenset({2})
"""`<|im_end|>`, which the tokenizer calls its eos; 0 is its padding."""
NEVER = frozenset({383})
"""A row of the vocabulary that is not said."""


@dataclass(frozen=True)
class Loaded:
    model: Any
    tokenizer: Any

    def ask(
        self,
        requests: list[GenerationRequest],
        sampling: Sampling,
        batch_size: int = 4,
        end_ids: frozenset[int] = NEVER,
    ) -> list[Completion]:
        """All completions, in the order of the requests and their samples."""
        found = dict(HfEngine(self.model, self.tokenizer, end_ids, batch_size).generate(requests, sampling))
        return [found[key] for key in sorted(found)]
