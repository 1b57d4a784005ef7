"""Generation by transformers: batches of like length, padded on the left.

Sampling is seeded per batch, and batches are a function of the requests alone, so the same requests give the
same samples again.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from toolkit.inference.batching import GenerationBatch, plan_batches
from toolkit.inference.engine import Completion, GenerationRequest, Sampling, StopReason


class HfEngine:
    """`model.generate` behind the Engine protocol.

    Args:
        model: a causal language model in evaluation mode, with or without an adapter.
        tokenizer: decodes for stop strings, and names the padding token.
        end_ids: ids that end a turn.
        dtype: what the forward pass computes in.
        batch_size: completions that are generated at once.
    """

    def __init__(
        self, model: Any, tokenizer: Any, end_ids: frozenset[int], dtype: torch.dtype, batch_size: int
    ) -> None:
        self.end_ids = end_ids
        self._model: Any = model
        self._tokenizer = tokenizer
        self._dtype = dtype
        self._batch_size = batch_size

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Yield each request's completions as its batch is done, the longest prompts first."""
        for batch in plan_batches(requests, self._batch_size):
            torch.manual_seed(batch.seed)
            completions = iter(self._complete(batch, sampling))
            for index in batch.indices:
                yield index, [next(completions) for _ in range(requests[index].n)]

    def close(self) -> None:
        """Drop the model."""
        self._model = None

    @torch.no_grad()
    def _complete(self, batch: GenerationBatch, sampling: Sampling) -> list[Completion]:
        prompts, mask = self._left_padded(batch.prompts)
        recorder = LogProbRecorder(sampling.temperature) if sampling.logprobs else None
        device = self._model.device
        with torch.autocast(device.type, dtype=self._dtype, enabled=self._dtype is not torch.float32):
            sequences = self._model.generate(
                input_ids=prompts.to(device),
                attention_mask=mask.to(device),
                generation_config=self._generation_config(sampling),
                logits_processor=LogitsProcessorList([recorder] if recorder else []),
                # Stop strings are found in decoded text, for which generate wants the tokenizer.
                **({"tokenizer": self._tokenizer} if sampling.stop else {}),
            )
        answers = sequences[:, prompts.shape[1] :].cpu()
        logprobs = recorder.finish(sequences)[:, -answers.shape[1] :].cpu() if recorder else None
        return [
            self._completion(answer.tolist(), None if logprobs is None else logprobs[row].tolist(), sampling)
            for row, answer in enumerate(answers)
        ]

    def _left_padded(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), width), self._tokenizer.pad_token_id, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        return ids, mask

    def _generation_config(self, sampling: Sampling) -> GenerationConfig:
        sampled: dict[str, Any] = {"do_sample": False}
        if sampling.temperature > 0:
            sampled = {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
                "min_p": sampling.min_p or None,
            }
        return GenerationConfig(
            max_new_tokens=sampling.max_new_tokens,
            repetition_penalty=sampling.repetition_penalty,
            eos_token_id=sorted(self.end_ids),
            pad_token_id=self._tokenizer.pad_token_id,
            stop_strings=list(sampling.stop) or None,
            use_cache=True,
            **sampled,
        )

    def _completion(self, ids: list[int], logprobs: list[float] | None, sampling: Sampling) -> Completion:
        """Cut the padding off: a row ends at its end id, at a stop string, or at the limit."""
        end = next((position for position, token in enumerate(ids) if token in self.end_ids), None)
        if end is not None:
            length, reason = end + 1, StopReason.END
        else:
            length, reason = self._unended(ids, sampling)
        return Completion(tuple(ids[:length]), reason, None if logprobs is None else tuple(logprobs[:length]))

    def _unended(self, ids: list[int], sampling: Sampling) -> tuple[int, StopReason]:
        for length in range(1, len(ids) + 1) if sampling.stop else ():
            text = self._tokenizer.decode(ids[:length])
            if any(stop in text for stop in sampling.stop):
                return length, StopReason.STOP
        return len(ids), StopReason.LENGTH


class LogProbRecorder(LogitsProcessor):
    """Remembers the log-probability of each sampled token, one step behind: a step's token is known at the next.

    It comes before the sampling filters, so the scores are the model's own.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature or 1.0
        self._pending: torch.Tensor | None = None
        self._recorded: list[torch.Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Take ids of shape [rows, seq]; scores of shape [rows, vocabulary] go through unchanged."""
        self._gather(input_ids[:, -1])
        self._pending = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        return scores

    def finish(self, sequences: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all generated tokens, shape [rows, new tokens]."""
        self._gather(sequences[:, -1])
        return torch.stack(self._recorded, dim=1)

    def _gather(self, tokens: torch.Tensor) -> None:
        if self._pending is not None:
            self._recorded.append(self._pending.gather(1, tokens[:, None]).squeeze(1))
            self._pending = None
