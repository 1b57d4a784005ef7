"""A loaded model with a shorthand for generating from it."""

from dataclasses import dataclass
from typing import Any

from posttrain.inference.engine import Completion, GenerationRequest, Sampling
from posttrain.inference.hf.engine import HfEngine

END = frozenset({2})
"""`<|im_end|>`, the tokenizer's eos; its padding is 0."""
NEVER = frozenset({383})
"""A vocabulary row that is never generated."""


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
        """All completions, ordered by request and sample."""
        found = dict(HfEngine(self.model, self.tokenizer, end_ids, batch_size).generate(requests, sampling))
        return [found[key] for key in sorted(found)]
