"""Prompts from the dataserver, as token ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from posttrain.conversation.encoder import ConversationEncoder
from posttrain.conversation.messages import Conversation, parse_conversation
from posttrain.dataserver.schemas import Sample, Split
from posttrain.errors import DataError
from posttrain.rl.schedule import RolloutSchedule


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        ids: what the model continues.
        text: what the user asked last, for people to read.
        is_too_long: whether it is longer than `rollout.max_prompt_tokens`; then nothing is generated for it.
    """

    sample_id: str
    dataset: str
    slot: int
    ids: tuple[int, ...]
    text: str
    is_too_long: bool


class SampleSource(Protocol):
    """What hands out samples: the client of the dataserver."""

    def sample(self, iteration: int, offset: int, batch_size: int, split: Split = "train") -> list[Sample]:
        """Those in the slots offset … offset + batch_size − 1 of an iteration."""
        ...


class PromptSource:
    """Asks for the prompts of a generation, or for held-out ones, and encodes them."""

    def __init__(
        self, samples: SampleSource, encoder: ConversationEncoder, schedule: RolloutSchedule, max_prompt_tokens: int
    ) -> None:
        self._samples = samples
        self._encoder = encoder
        self._schedule = schedule
        self._limit = max_prompt_tokens
        self.of_generation = lru_cache(maxsize=2)(self._of_generation)

    def _of_generation(self, generation: int) -> tuple[Prompt, ...]:
        """All prompts of a generation, in slot order.

        Raises:
            ServerError: the dataserver cannot be asked.
            DataError: the chat template refuses a prompt.
        """
        iteration = self._schedule.iteration_of(generation)
        return self._encoded(self._samples.sample(iteration, 0, self._schedule.prompts_per_iteration))

    def held_out(self, count: int) -> tuple[Prompt, ...]:
        """The first `count` held-out prompts; errors as above."""
        return self._encoded(self._samples.sample(0, 0, count, "validation"))

    def _encoded(self, samples: Sequence[Sample]) -> tuple[Prompt, ...]:
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
            )
            for sample, conversation, ids in zip(samples, conversations, rows, strict=True)
        )


def _conversation(sample: Sample) -> Conversation:
    try:
        return parse_conversation([message.model_dump(exclude_none=True) for message in sample.messages], sample.tools)
    except DataError as error:
        raise DataError(f"the dataserver's sample {sample.sample_id} is no conversation: {error}") from None
