"""An engine of your own: transformers on the CPU, one token at a time, as plainly as possible."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling, StopReason


class PlainEngine:
    """Samples each completion by itself, from its own seed, so that it repeats whatever else is asked."""

    def __init__(self, model: str, end_ids: frozenset[int], dtype: str = "float32") -> None:
        """`dtype` is an option of this engine; a config may give any such options."""
        self._end_ids = end_ids
        self._dtype = getattr(torch, dtype)
        self.load(Path(model), 0)

    def load(self, weights: Path, version: int) -> None:
        """Read the whole model anew."""
        self._model: Any = AutoModelForCausalLM.from_pretrained(weights, dtype=self._dtype).eval()
        self._version = version

    def complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """All completions of all requests, by (request, number within the request)."""
        return {
            (position, sample): self._one(request.prompt_ids, seed, sampling)
            for position, request in enumerate(requests)
            for sample, seed in enumerate(request.seeds)
        }

    @torch.no_grad()
    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of ids[1:] at temperature 1."""
        given = torch.tensor([ids])
        return self._model(given).logits[0, :-1].log_softmax(-1).gather(-1, given[0, 1:, None])[:, 0].tolist()

    def close(self) -> None:
        """Free the model."""
        del self._model

    @torch.no_grad()
    def _one(self, prompt_ids: Sequence[int], seed: int, sampling: Sampling) -> Completion:
        ids, logprobs = list(prompt_ids), []
        numbers = torch.Generator().manual_seed(seed)
        for _ in range(sampling.max_new_tokens):
            scores = self._model(torch.tensor([ids])).logits[0, -1] / (sampling.temperature or 1.0)
            log_p = scores.log_softmax(-1)
            chosen = torch.multinomial(log_p.exp(), 1, generator=numbers) if sampling.temperature else log_p.argmax()
            ids.append(int(chosen))
            logprobs.append(log_p[ids[-1]].item())
            if ids[-1] in self._end_ids:
                break
        reason = StopReason.END if ids[-1] in self._end_ids else StopReason.LENGTH
        return Completion(tuple(ids[len(prompt_ids) :]), reason, tuple(logprobs))
