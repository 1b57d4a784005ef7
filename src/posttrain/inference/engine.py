"""The engine protocol: token ids, sampling options and seeds in; completions out.

An engine never sees text, so what is asked of a model is, id for id, what it was trained to continue.
"""

import hashlib
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Protocol

from posttrain.config.sections.generation import SamplingConfig

Key = tuple[int, int]
"""Which completion: the position of its request, and its number among those of the request, both from 0."""


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    """The model ended its turn, or began another one: the last token is one of the end ids."""
    LENGTH = "length"
    """It reached `max_new_tokens`."""
    STOP = "stop"
    """A stop string turned up in its text; the last token is the one that completed it."""


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled.

    Attributes:
        temperature: 0 is greedy decoding, to which top_p, top_k and min_p are nothing.
        top_p: 1 leaves nothing out.
        top_k: 0 leaves nothing out.
        min_p: 0 leaves nothing out.
        repetition_penalty: on the tokens of the prompt and of the completion so far; 1 is none.
        stop: strings that are looked for in the completion's own text.
        logprobs: whether completions come with their log-probabilities.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    logprobs: bool = False

    @classmethod
    def of(cls, section: SamplingConfig, *, logprobs: bool = False) -> "Sampling":
        """What a section of a config asks for."""
        names = [field.name for field in fields(cls) if field.name != "logprobs"]
        return cls(**{name: getattr(section, name) for name in names}, logprobs=logprobs)


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt, and one seed for each completion that is wanted of it.

    The seeds decide the samples: the same requests give the same completions again. An engine that cannot seed
    each completion by itself seeds a batch by the seeds of its completions.
    """

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)

    @property
    def n(self) -> int:
        """How many completions are wanted."""
        return len(self.seeds)


@dataclass(frozen=True)
class Completion:
    """One answer.

    Attributes:
        token_ids: with the end token, where there is one.
        stop_reason: why it ended.
        logprobs: log p of each token, in nats, by the model's softmax at the sampling temperature (1 where that
            is 0), before the repetition penalty, top-p, top-k and min-p; None unless asked for.
    """

    token_ids: tuple[int, ...]
    stop_reason: StopReason
    logprobs: tuple[float, ...] | None = None


class Engine(Protocol):
    """A loaded model that answers requests."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, *, done: AbstractSet[Key] = frozenset()
    ) -> Iterator[tuple[Key, Completion]]:
        """Yield completions as they are done, in whatever order suits the engine.

        Those in `done` are not wanted any more. Leaving them out of `requests` instead could change the samples
        of the others, where an engine makes batches of its requests.
        """
        ...

    def close(self) -> None:
        """Give back the memory."""
        ...


def derive_seed(*parts: int) -> int:
    """A seed of 56 bits that depends on all of `parts`: (seed, generation, slot, sample), say."""
    text = ",".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of `ids`, control tokens and all, with no blank taken away."""
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def completion_text(tokenizer: Any, completion: Completion, stop: Sequence[str]) -> str:
    """What was said: without the end token, and up to the first stop string."""
    ended = completion.stop_reason is StopReason.END
    text = decode(tokenizer, completion.token_ids[:-1] if ended else completion.token_ids)
    found = [position for string in stop if (position := text.find(string)) >= 0]
    return text[: min(found)] if found else text
