"""Generation with transformers, in left-padded batches of similar length.

Sampling is seeded per batch, and batches depend on the requests alone, so a repeated call gives identical samples.
`generate` runs the logits processors passed to it in their order, before temperature, top-k, top-p and min-p.
"""

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from posttrain.conversation.masks import IGNORED_LABEL, TokenRow
from posttrain.inference.engine import (
    Completion,
    FinishedCompletions,
    GenerationRequest,
    Key,
    Sampling,
    StopReason,
    complete_by,
    decode,
    plan_batches,
)
from posttrain.models.kernels.compiled_layers import as_written
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.padding import pad_rows


class HfEngine:
    """`model.generate` behind the Engine protocol.

    Args:
        model: a causal language model in evaluation mode, with or without an adapter.
        tokenizer: decodes text to find stop strings, and provides the padding token.
        end_ids: ids that end a completion, as returned by `posttrain.inference.load.end_ids`.
        batch_size: completions generated at once.
    """

    def __init__(self, model: Any, tokenizer: Any, end_ids: frozenset[int], batch_size: int) -> None:
        self._model: Any = model
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._batch_size = batch_size
        self._head: LabelledHead | None = None

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, *, done: AbstractSet[Key] = frozenset()
    ) -> Iterator[tuple[Key, Completion]]:
        """Yield completions batch by batch, longest prompts first.

        A batch with some completions in `done` is generated whole, so that the others stay the same.
        """
        for batch in plan_batches(requests, self._batch_size):
            if all(key in done for key in batch.keys):
                continue
            prompts = [requests[position].prompt_ids for position, _ in batch.keys]
            completions = self._complete(prompts, batch.seed, sampling)
            yield from (pair for pair in zip(batch.keys, completions, strict=True) if pair[0] not in done)

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        """All completions of all requests; a batch of them is made whole or not at all."""
        return complete_by(self.generate, requests, sampling, finished)

    @torch.inference_mode()
    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """The model's logits after each of the tokens, in float32, shape [tokens, vocabulary]."""
        row = torch.tensor([list(ids)], device=self._model.device)
        with as_written(self._model):
            return self._model(input_ids=row, use_cache=False).logits[0].float()

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of each token but the first, in nats, at temperature 1."""
        logprobs = self.logits(ids)[:-1].log_softmax(dim=-1)
        return logprobs[range(len(ids) - 1), list(ids[1:])].tolist()

    @torch.no_grad()
    def token_logprobs(self, rows: Sequence[TokenRow]) -> Iterator[tuple[int, list[float]]]:
        """Yield the number of each row, batch by batch, longest first, with log p of its trained tokens in nats."""
        self._head = self._head or LabelledHead(self._model)
        by_length = sorted(range(len(rows)), key=lambda row: (-len(rows[row].ids), row))
        for start in range(0, len(rows), self._batch_size):
            batch = by_length[start : start + self._batch_size]
            inputs, labels = (
                part.to(self._model.device) for part in pad_rows([(rows[row].ids, rows[row].trained) for row in batch])
            )
            losses = self._head.token_losses(self._model, inputs, labels)
            counts = (labels != IGNORED_LABEL).sum(dim=1).tolist()
            for row, own in zip(batch, losses.split(counts), strict=True):
                yield row, (-own).tolist()

    def close(self) -> None:
        """Drop the model."""
        if self._head is not None:
            self._head.detach()
        self._model = self._head = None

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
        """The cache of all but the last prompt token, computed once per distinct prompt.

        None if no prompt occurs twice, if a prompt is a single token, or if a layer of the model caches anything other
        than keys and values, which transformers cannot copy to several rows.
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
        """Cut a row at its end token, its stop string or the limit, whichever comes first."""
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
    """Set aside the sampling defaults of the model folder, which `generate` would use for every option left unset."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    defaults = base.generation_config
    base.generation_config = GenerationConfig()
    try:
        yield
    finally:
        base.generation_config = defaults


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers with `seed`; restore their previous state afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class LogProbRecorder(LogitsProcessor):
    """Records the log-probability of each sampled token, one step late: a step's token is known only at the next step.

    Must be the first of the processors, so that it gets the model's own logits.
    """

    def __init__(self, temperature: float) -> None:
        self._temperature = temperature or 1.0
        self._pending: torch.Tensor | None = None
        self._recorded: list[torch.Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Take ids of shape [rows, seq] and logits of shape [rows, vocabulary]; return the logits unchanged."""
        self._record(input_ids[:, -1])
        self._pending = torch.log_softmax(scores.float() / self._temperature, dim=-1)
        return scores

    def finish(self, sequences: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of all generated tokens, shape [rows, new tokens]."""
        self._record(sequences[:, -1])
        return torch.stack(self._recorded, dim=1)

    def _record(self, tokens: torch.Tensor) -> None:
        if self._pending is not None:
            self._recorded.append(self._pending.gather(1, tokens[:, None]).squeeze(1))
            self._pending = None


class RepetitionPenalty(LogitsProcessor):
    """Divides the positive logits of tokens that already occurred by `penalty`, and multiplies the negative ones.

    Unlike the version in transformers it ignores padding, so that a completion does not depend on its batch.
    """

    def __init__(self, penalty: float, mask: torch.Tensor) -> None:
        self._penalty = penalty
        self._padding = mask == 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Take ids of shape [rows, seq] and logits of shape [rows, vocabulary]."""
        ids = input_ids.clone()
        width = self._padding.shape[1]
        # Replace padding with the last token of the prompt, which is penalised anyway.
        ids[:, :width] = torch.where(self._padding, ids[:, width - 1 : width], ids[:, :width])
        said = scores.gather(1, ids)
        return scores.scatter(1, ids, torch.where(said < 0, said * self._penalty, said / self._penalty))


class StopStrings(StoppingCriteria):
    """Ends a row once its completion's text contains a stop string; the prompt does not count.

    `lengths` maps each row ended this way to its number of completion tokens at that point.
    """

    def __init__(self, stop: Sequence[str], tokenizer: Any, prompt_width: int) -> None:
        self.lengths: dict[int, int] = {}
        self._stop = stop
        self._tokenizer = tokenizer
        self._prompt_width = prompt_width
        # A token is at least one byte, so a stop string that ends in the last token starts at most this many tokens
        # back. A few more are added because the decoder may render the first tokens of a text differently from later
        # ones.
        self._tail = max(len(string.encode()) for string in stop) + 8

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        """Take ids of shape [rows, seq]; return which rows have ended, shape [rows]."""
        length = input_ids.shape[1] - self._prompt_width
        tails = input_ids[:, -min(self._tail, length) :].tolist()
        for row, tail in enumerate(tails):
            if row not in self.lengths:
                text = decode(self._tokenizer, tail)
                if any(string in text for string in self._stop):
                    self.lengths[row] = length
        ended = [row in self.lengths for row in range(len(tails))]
        return torch.tensor(ended, device=input_ids.device)
