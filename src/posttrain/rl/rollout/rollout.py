"""Prompts and rollouts: token ids, loss mask, log-probabilities and rewards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from posttrain.conversation.encoder import ConversationEncoder
from posttrain.conversation.messages import Conversation, parse_conversation
from posttrain.dataserver.schemas import GradeResult, Origin, Sample, Split
from posttrain.errors import DataError
from posttrain.inference.engine import Completion, Sampling, StopReason, completion_text
from posttrain.rl.rollout.selection import Place
from posttrain.rl.schedule import RolloutSchedule


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        ids: tokens that the model continues.
        text: the last message that is not the assistant's, for people to read.
        is_too_long: whether it is longer than `rollout.max_prompt_tokens`; then nothing is generated for it.
        attempt: 0 for the row that the curriculum asks in this slot, n for its n-th substitute.
        iteration: the one that asks it.
        origin: where its completions come from, for the journal and the dataserver's page.
    """

    sample_id: str
    dataset: str
    slot: int
    ids: tuple[int, ...]
    text: str
    is_too_long: bool
    attempt: int = 0
    iteration: int = 0
    origin: Origin = "fresh"

    @property
    def place(self) -> Place:
        """Identifies the group of its completions within the iteration."""
        return Place(self.attempt, self.slot)

    @property
    def group(self) -> tuple[int, int, int]:
        """Identifies the group of its completions in the run: the iteration, the slot in it, and the attempt."""
        return self.iteration, self.slot, self.attempt


class SampleSource(Protocol):
    """Hands out samples; the dataserver's client is one."""

    def sample(self, iteration: int, offset: int, batch_size: int, split: Split = "train") -> list[Sample]:
        """The samples in slots offset … offset + batch_size − 1 of an iteration."""
        ...

    def substitutes(self, iteration: int, slots: Sequence[int], attempt: int) -> list[Sample]:
        """For each slot another row of the data set of its sample, in the order of `slots`; attempts count from 1."""
        ...


class PromptSource:
    """Fetches the prompts of a generation, or held-out ones, and encodes them."""

    def __init__(
        self, samples: SampleSource, encoder: ConversationEncoder, schedule: RolloutSchedule, max_prompt_tokens: int
    ) -> None:
        self._samples = samples
        self._encoder = encoder
        self._schedule = schedule
        self._limit = max_prompt_tokens
        self.of_generation = lru_cache(maxsize=schedule.staleness + 2)(self._of_generation)

    def _of_generation(self, generation: int) -> tuple[Prompt, ...]:
        """All prompts of a generation, in slot order.

        Raises:
            ServerError: the dataserver does not answer, or refuses.
            DataError: a sample is not a conversation, or the chat template refuses it.
        """
        iteration = self._schedule.iteration_of(generation)
        return self._encoded(self._samples.sample(iteration, 0, self._schedule.prompts_per_iteration), iteration)

    def substitutes(self, generation: int, places: Sequence[Place], origin: Origin = "substitute") -> list[Prompt]:
        """The prompts at some places other than the curriculum's own, in their order; errors as `of_generation`."""
        iteration = self._schedule.iteration_of(generation)
        found: dict[Place, Prompt] = {}
        for attempt in sorted({place.attempt for place in places}):
            slots = [place.slot for place in places if place.attempt == attempt]
            prompts = self._encoded(self._samples.substitutes(iteration, slots, attempt), iteration)
            found |= {Place(attempt, each.slot): replace(each, attempt=attempt, origin=origin) for each in prompts}
        return [found[place] for place in places]

    def held_out(self, count: int) -> tuple[Prompt, ...]:
        """The first `count` held-out prompts; raises the same errors as `of_generation`."""
        return self._encoded(self._samples.sample(0, 0, count, "validation"))

    def _encoded(self, samples: Sequence[Sample], iteration: int = 0) -> tuple[Prompt, ...]:
        conversations = [_conversation(sample) for sample in samples]
        rows = self._encoder.prompts(conversations)
        return tuple(
            Prompt(
                sample_id=sample.sample_id,
                dataset=sample.dataset,
                slot=sample.slot,
                ids=tuple(ids),
                text=next(m.content for m in reversed(conversation.messages) if m.role != "assistant"),
                is_too_long=len(ids) > self._limit,
                iteration=iteration,
            )
            for sample, conversation, ids in zip(samples, conversations, rows, strict=True)
        )


def _conversation(sample: Sample) -> Conversation:
    try:
        return parse_conversation([message.model_dump(exclude_none=True) for message in sample.messages], sample.tools)
    except DataError as error:
        raise DataError(f"the dataserver's sample {sample.sample_id} is not a conversation: {error}") from None


@dataclass(frozen=True)
class Rollout:
    """One completion of a prompt, and its grades.

    Attributes:
        sample: its number among the completions of its prompt.
        ids: its tokens, shape [tokens]; empty if the prompt is too long.
        mask: which tokens the model sampled and can be trained on, shape [tokens].
        versions: for each token, the number of optimizer steps behind the weights that sampled it, shape [tokens].
        logprobs: log μ of each token, from the engine at the sampling temperature, in nats, shape [tokens]; None unless
            requested.
        temperature: the sampling temperature.
        text: the completion without its end token, up to the first stop text.
        was_cut: whether it reached the length limit.
        result: None if it was not graded: its prompt is too long, or the dataserver could not be reached.
        is_left_out: whether its slot is left empty, so that it does not count; it has no tokens then.
    """

    prompt: Prompt
    sample: int
    ids: npt.NDArray[np.int64]
    mask: npt.NDArray[np.bool_]
    versions: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32] | None
    temperature: float
    text: str
    was_cut: bool
    result: GradeResult | None = None
    is_left_out: bool = False

    @classmethod
    def of(
        cls,
        prompt: Prompt,
        sample: int,
        completion: Completion | None,
        tokenizer: Any,
        sampling: Sampling,
        version: int,
    ) -> "Rollout":
        """Build a rollout from an engine's completion; `completion` is None if the engine was not asked."""
        ids = np.array(() if completion is None else completion.token_ids, dtype=np.int64)
        logprobs = None if completion is None or completion.logprobs is None else completion.logprobs
        return cls(
            prompt=prompt,
            sample=sample,
            ids=ids,
            mask=np.ones(len(ids), dtype=np.bool_),
            versions=np.full(len(ids), version, dtype=np.int32),
            logprobs=None if logprobs is None else np.array(logprobs, dtype=np.float32),
            temperature=sampling.temperature,
            text="" if completion is None else completion_text(tokenizer, completion, sampling.stop),
            was_cut=completion is not None and completion.stop_reason is StopReason.LENGTH,
        )

    def continued(self, completion: Completion, tokenizer: Any, version: int) -> "Rollout":
        """The rollout with an engine's continuation of it; there must be no stop texts."""
        ids = np.append(self.ids, np.array(completion.token_ids, dtype=np.int64))
        logprobs = None
        if completion.logprobs is not None:
            logprobs = np.array(completion.logprobs, dtype=np.float32)
            logprobs = logprobs if self.logprobs is None else np.append(self.logprobs, logprobs)
        whole = Completion(tuple(ids.tolist()), completion.stop_reason)
        return replace(
            self,
            ids=ids,
            mask=np.ones(len(ids), dtype=np.bool_),
            versions=np.append(self.versions, np.full(len(completion.token_ids), version, dtype=np.int32)),
            logprobs=logprobs,
            text=completion_text(tokenizer, whole, ()),
            was_cut=completion.stop_reason is StopReason.LENGTH,
        )

    @property
    def tokens(self) -> int:
        """The completion's length."""
        return len(self.ids)

    @property
    def all_tokens(self) -> int:
        """Tokens of the prompt and the completion; 0 if it has none."""
        return len(self.prompt.ids) + self.tokens if self.tokens else 0

    @property
    def reward(self) -> float | None:
        """The reward; None, not 0, if there is none."""
        return self.result.reward if self.result is not None else None

    def as_dict(self) -> dict[str, Any]:
        """The rollout as a line of JSON for people to read."""
        result = self.result
        return {
            "sample_id": self.prompt.sample_id,
            "prompt": self.prompt.text,
            "completion": self.text,
            "tokens": self.tokens,
            "truncated": self.was_cut,
            "status": result.status if result is not None else "not graded",
            "reward": self.reward,
            "reason": result.reason if result is not None else "",
            "scores": {name: each.score for name, each in result.components.items()} if result is not None else {},
        }


def prompts_of(rollouts: Sequence[Rollout]) -> list[Prompt]:
    """The prompts that the curriculum asks, in slot order."""
    found = {each.prompt.slot: each.prompt for each in rollouts if not each.prompt.attempt}
    return [found[slot] for slot in sorted(found)]


def rollout_means(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Shares of what went wrong, mean rewards by data set and mean scores by grader, as far as there are any."""
    found: dict[str, list[float]] = {}
    for each in rollouts:
        found.setdefault("too_long_prompts", []).append(float(each.prompt.is_too_long))
        found.setdefault("truncated_share", []).append(float(each.was_cut))
        if each.result is None:
            continue
        found.setdefault("abstained", []).append(float(each.result.status == "abstain"))
        found.setdefault("failed", []).append(float(each.result.status == "error"))
        if each.result.reward is not None:
            found.setdefault(f"rewards/{each.prompt.dataset}", []).append(each.result.reward)
        for name, component in each.result.components.items():
            if component.score is not None:
                found.setdefault(f"graders/{name}", []).append(component.score)
    return {name: fmean(values) for name, values in found.items()}
