"""Generation with transformers, in left-padded batches of similar length.

Each completion is sampled with random numbers of its own, and batches depend on the requests alone, so a repeated call
gives identical samples. `generate` takes the likeliest token that the last of the logits processors leaves.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.cache_utils import DynamicSlidingWindowLayer

from posttrain.conversation.masks import IGNORED_LABEL, TokenRow
from posttrain.inference.engine import (
    Completion,
    FinishedCompletions,
    GenerationRequest,
    Hear,
    Key,
    Sampling,
    StopReason,
    complete_by,
    plan_batches,
)
from posttrain.inference.hf.draws import Draws, seeded
from posttrain.inference.hf.hooks import EnoughEnded, Listener, LogProbRecorder, RepetitionPenalty, StopStrings
from posttrain.models.kernels import recomputed_attention
from posttrain.models.kernels.compiled_layers import as_written
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.kernels.offloaded_embeddings import device_of
from posttrain.models.kernels.packed_prefill import packed_prefill
from posttrain.models.kernels.packed_rows import is_tried, why_not_packed
from posttrain.models.kernels.roomy_cache import RoomyLayer, roomy_cache
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
        self._packs: bool | None = None

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, *, done: AbstractSet[Key] = frozenset()
    ) -> Iterator[tuple[Key, Completion]]:
        """Yield completions batch by batch, longest prompts first.

        A batch with some completions in `done` is generated whole, so that the others stay the same.
        """
        for batch in plan_batches(requests, self._batch_size):
            if all(key in done for key in batch):
                continue
            completions = self._complete(requests, batch, sampling)
            yield from (pair for pair in zip(batch, completions, strict=True) if pair[0] not in done)

    def stream(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, hear: Hear
    ) -> Iterator[tuple[Key, Completion]]:
        """Yield completions as `generate` does, and tell each of their tokens as soon as it is there.

        A batch goes on until the last of its completions has ended.
        """
        for batch in plan_batches(requests, self._batch_size):

            def hear_row(row: int, token: int, keys: Sequence[Key] = batch) -> bool:
                return hear(keys[row], (token,))

            completions = self._complete(requests, batch, sampling, hear_row)
            yield from zip(batch, completions, strict=True)

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
        row = torch.tensor([list(ids)], device=device_of(self._model))
        with as_written(self._model):
            return self._model(input_ids=row, use_cache=False).logits[0].float()

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of each token but the first, in nats, at temperature 1."""
        logprobs = self.logits(ids)[:-1].log_softmax(dim=-1)
        return logprobs[range(len(ids) - 1), list(ids[1:])].tolist()

    @torch.no_grad()
    def token_logprobs(self, rows: Sequence[TokenRow]) -> Iterator[tuple[int, list[float]]]:
        """Yield the number of each row, batch by batch, longest first, with log p of its trained tokens in nats."""
        self._head = self._head or LabelledHead(self._model, packed=self._takes_packed_rows())
        by_length = sorted(range(len(rows)), key=lambda row: (-len(rows[row].ids), row))
        for start in range(0, len(rows), self._batch_size):
            batch = by_length[start : start + self._batch_size]
            inputs, labels = (
                part.to(device_of(self._model))
                for part in pad_rows([(rows[row].ids, rows[row].trained) for row in batch])
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
    def _complete(
        self,
        requests: Sequence[GenerationRequest],
        batch: Sequence[Key],
        sampling: Sampling,
        hear: Callable[[int, int], bool] | None = None,
    ) -> list[Completion]:
        prompts = [requests[position].prompt_ids for position, _ in batch]
        if self._model.config._attn_implementation == "sdpa":
            recomputed_attention.use_in(self._model)
        ids, mask = _left_padded(prompts, self._tokenizer.pad_token_id, device_of(self._model))
        made: dict[int, Completion] = {}
        generators = [seeded(requests[position].seeds[number]) for position, number in batch]
        with _model_defaults_aside(self._model), as_written(self._model):
            cache = self._prefill(prompts, ids, mask)
            rows = _Rows(ids, mask, cache, ids.shape[1], list(range(len(prompts))), generators)
            while rows.numbers:
                found = self._continued(rows, sampling, hear, made)
                left = [place for place, one in enumerate(found) if not _has_ended(one, sampling)]
                made.update(zip(rows.numbers, found, strict=True))
                rows.keep(left)
        return [made[row] for row in range(len(prompts))]

    def _continued(
        self,
        rows: "_Rows",
        sampling: Sampling,
        hear: Callable[[int, int], bool] | None,
        before: Mapping[int, Completion],
    ) -> list[Completion]:
        """Generate until all rows have ended, or a quarter of them if the others can go on without those."""
        recorder = LogProbRecorder(sampling.temperature) if sampling.logprobs else None
        prompt_mask = rows.mask[:, : rows.width]
        penalty = sampling.repetition_penalty
        penalised = RepetitionPenalty(penalty, prompt_mask) if penalty != 1 else None
        draws = Draws(sampling, rows.generators) if sampling.temperature > 0 else None
        stops = StopStrings(sampling.stop, self._tokenizer, rows.width) if sampling.stop else None
        stopped = stops.lengths if stops else {}
        hear_row = None if hear is None else lambda place, token: hear(rows.numbers[place], token)
        listener = Listener(hear_row, self._end_ids, stopped, rows.width) if hear_row else None
        cut = listener.lengths if listener else {}
        enough = EnoughEnded(self._end_ids, (stopped, cut)) if rows.cache is not None else None
        rows.ids = self._model.generate(
            input_ids=rows.ids,
            attention_mask=rows.mask,
            past_key_values=rows.cache,
            generation_config=self._config(sampling.max_new_tokens + rows.width - rows.ids.shape[1]),
            logits_processor=LogitsProcessorList(hook for hook in (recorder, penalised, draws) if hook),
            stopping_criteria=StoppingCriteriaList(hook for hook in (stops, listener, enough) if hook),
        )
        logprobs = recorder.finish(rows.ids).tolist() if recorder else None
        answers = rows.ids[:, rows.width :].tolist()
        completions = []
        for place, (row, answer) in enumerate(zip(rows.numbers, answers, strict=True)):
            known = before[row].logprobs or () if row in before else ()
            all_logprobs = None if logprobs is None else [*known, *logprobs[place]]
            completions.append(self._completion(answer, all_logprobs, stopped.get(place), cut.get(place)))
        return completions

    def _prefill(self, prompts: Sequence[tuple[int, ...]], ids: torch.Tensor, mask: torch.Tensor) -> Any:
        """The cache of all but the last prompt token, computed once per distinct prompt if the model allows it.

        It is empty if `generate` is to fill it; None if a layer of the model caches anything other than keys and
        values, which transformers cannot copy to several rows.
        """
        if self._takes_packed_rows():
            return packed_prefill(self._model, [prompt[:-1] for prompt in prompts])
        rows = {prompt: row for row, prompt in enumerate(prompts)}
        cache = roomy_cache(self._model.config)
        shareable = all(type(layer) in (RoomyLayer, DynamicSlidingWindowLayer) for layer in cache.layers)
        if not shareable:
            return None
        if len(rows) == len(prompts) or min(map(len, rows)) < 2:
            return cache
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

    def _takes_packed_rows(self) -> bool:
        """Whether prompts go through the model as one sequence: on a CPU, if all its layers see all tokens."""
        if self._packs is None:
            device = device_of(self._model)
            autocast = torch.is_autocast_enabled(device.type)
            dtype = torch.get_autocast_dtype(device.type) if autocast else self._model.dtype
            self._packs = is_tried(None, device) and why_not_packed(self._model, dtype, sys.maxsize) is None
        return self._packs

    def _config(self, max_new_tokens: int) -> GenerationConfig:
        return GenerationConfig(
            max_new_tokens=max_new_tokens,
            eos_token_id=sorted(self._end_ids),
            pad_token_id=self._tokenizer.pad_token_id,
            use_cache=True,
            do_sample=False,
        )

    def _completion(
        self, ids: list[int], logprobs: list[float] | None, stopped: int | None, cut: int | None
    ) -> Completion:
        """Cut a row at its end token, its stop string, its listener's wish or the limit, whichever comes first."""
        ends = [(len(ids), StopReason.LENGTH)]
        if cut is not None:
            ends.append((cut, StopReason.CUT))
        if stopped is not None:
            ends.append((stopped, StopReason.STOP))
        if end := next((length for length, token in enumerate(ids, start=1) if token in self._end_ids), None):
            ends.append((end, StopReason.END))
        length, reason = min(reversed(ends), key=lambda pair: pair[0])
        return Completion(tuple(ids[:length]), reason, None if logprobs is None else tuple(logprobs[:length]))


@dataclass
class _Rows:
    """Rows of a batch that are still generated.

    Attributes:
        ids: the padded prompts and what was generated so far, shape [rows, seq].
        mask: 0 for padding and 1 for tokens, shape [rows, seq].
        cache: of what `ids` holds, up to the last token; None if `generate` is to make one each time.
        width: tokens of a padded prompt.
        numbers: which rows of the batch these are.
        generators: their random numbers.
    """

    ids: torch.Tensor
    mask: torch.Tensor
    cache: Any
    width: int
    numbers: list[int]
    generators: list[np.random.Generator]

    def keep(self, places: Sequence[int]) -> None:
        """Go on with some of the rows."""
        self.numbers = [self.numbers[place] for place in places]
        self.generators = [self.generators[place] for place in places]
        if not places:
            return
        kept = torch.tensor(places, device=self.ids.device)
        self.ids, self.mask = self.ids[kept], self.mask[kept]
        new = self.ids.shape[1] - self.mask.shape[1]
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(places), new)], dim=1)
        self.cache.batch_select_indices(kept)


def _has_ended(completion: Completion, sampling: Sampling) -> bool:
    return completion.stop_reason is not StopReason.LENGTH or len(completion.token_ids) == sampling.max_new_tokens


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
