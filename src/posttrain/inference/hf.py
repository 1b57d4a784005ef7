"""Generation by transformers: batches of like length, padded on the left.

Samples are seeded by batch, and batches are a function of the requests alone.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, StoppingCriteriaList
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from posttrain.inference.batching import plan_batches
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling, StopReason
from posttrain.inference.hf_hooks import LogProbRecorder, RepetitionPenalty, StopStrings
from posttrain.models.kernels.compiled_layers import as_written


class HfEngine:
    """`model.generate` behind the Engine protocol.

    Args:
        model: a causal language model in evaluation mode, with or without an adapter.
        tokenizer: decodes for stop strings, and names the padding token.
        end_ids: ids that end a completion, as `posttrain.inference.load.end_ids` finds them.
        batch_size: completions that are generated at once.
    """

    def __init__(self, model: Any, tokenizer: Any, end_ids: frozenset[int], batch_size: int) -> None:
        self._model: Any = model
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._batch_size = batch_size

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, *, done: AbstractSet[Key] = frozenset()
    ) -> Iterator[tuple[Key, Completion]]:
        """Yield completions batch by batch, the longest prompts first.

        A batch of which some are done is generated whole, so that the others come out as they would have.
        """
        for batch in plan_batches(requests, self._batch_size):
            if all(key in done for key in batch.keys):
                continue
            prompts = [requests[position].prompt_ids for position, _ in batch.keys]
            completions = self._complete(prompts, batch.seed, sampling)
            yield from (pair for pair in zip(batch.keys, completions, strict=True) if pair[0] not in done)

    def close(self) -> None:
        """Drop the model."""
        self._model = None

    @torch.inference_mode()
    def _complete(self, prompts: Sequence[tuple[int, ...]], seed: int, sampling: Sampling) -> list[Completion]:
        ids, mask = _left_padded(prompts, self._tokenizer.pad_token_id, self._model.device)
        width = ids.shape[1]
        recorder = LogProbRecorder(sampling.temperature) if sampling.logprobs else None
        penalty = RepetitionPenalty(sampling.repetition_penalty, mask) if sampling.repetition_penalty != 1 else None
        stops = StopStrings(sampling.stop, self._tokenizer, width) if sampling.stop else None
        with _model_defaults_aside(self._model), as_written(self._model), _seeded(seed, ids.device):
            sequences = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                past_key_values=self._shared_prefill(prompts, ids, mask),
                generation_config=self._config(sampling),
                logits_processor=LogitsProcessorList(hook for hook in (recorder, penalty) if hook),
                stopping_criteria=StoppingCriteriaList([stops] if stops else []),
            )
        logprobs = recorder.finish(sequences).tolist() if recorder else [None] * len(prompts)
        stopped = stops.lengths if stops else {}
        return [
            self._completion(answer, row_logprobs, stopped.get(row))
            for row, (answer, row_logprobs) in enumerate(zip(sequences[:, width:].tolist(), logprobs, strict=True))
        ]

    def _shared_prefill(self, prompts: Sequence[tuple[int, ...]], ids: torch.Tensor, mask: torch.Tensor) -> Any:
        """The cache of all but the last prompt token, computed once for each different prompt.

        None where no prompt comes twice, or where a layer of the model keeps something else than keys and values,
        which transformers cannot hand out to several rows.
        """
        rows = {prompt: row for row, prompt in enumerate(prompts)}
        cache = DynamicCache(config=self._model.config)
        shareable = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)
        if len(rows) == len(prompts) or not shareable or min(map(len, rows)) < 2:
            return None
        different = list(rows.values())
        self._model.generate(
            input_ids=ids[different, :-1],
            attention_mask=mask[different, :-1],
            past_key_values=cache,
            generation_config=GenerationConfig(max_new_tokens=1, pad_token_id=self._tokenizer.pad_token_id),
        )
        places = {prompt: place for place, prompt in enumerate(rows)}
        cache.batch_select_indices(torch.tensor([places[prompt] for prompt in prompts], device=ids.device))
        return cache

    def _config(self, sampling: Sampling) -> GenerationConfig:
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
            eos_token_id=sorted(self._end_ids),
            pad_token_id=self._tokenizer.pad_token_id,
            use_cache=True,
            **sampled,
        )

    def _completion(self, ids: list[int], logprobs: list[float] | None, stopped: int | None) -> Completion:
        """Cut the padding off: a row ends at its end token, at a stop string, or at the limit."""
        ends = [(len(ids), StopReason.LENGTH)]
        if stopped is not None:
            ends.append((stopped, StopReason.STOP))
        if end := next((length for length, token in enumerate(ids, start=1) if token in self._end_ids), None):
            ends.append((end, StopReason.END))
        length, reason = min(reversed(ends), key=lambda pair: pair[0])
        return Completion(tuple(ids[:length]), reason, None if logprobs is None else tuple(logprobs[:length]))


def _left_padded(
    prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and attention mask, both of shape [prompts, longest]."""
    width = max(len(prompt) for prompt in prompts)
    ids = [[pad_id] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


@contextmanager
def _model_defaults_aside(model: Any) -> Iterator[None]:
    """Put away the sampling options that a model folder brings along: `generate` fills every gap with them."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    defaults = base.generation_config
    base.generation_config = GenerationConfig()
    try:
        yield
    finally:
        base.generation_config = defaults


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's random numbers from `seed`; afterwards they go on as if nothing had been drawn."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
