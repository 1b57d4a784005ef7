"""The engine protocol: token ids, sampling options and seeds in; completions out.

Prompts are token ids, never text, so a model gets exactly the ids that it was trained to continue.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from posttrain.config.sections.generation import SamplingConfig
from posttrain.conversation.masks import TokenRow

Key = tuple[int, int]
"""Identifies a completion: (index of its request, index within the request), both from 0."""


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    """The model ended its turn or began another one: the last token is an end id."""
    LENGTH = "length"
    """It reached `max_new_tokens`."""
    STOP = "stop"
    """A stop string appeared in the text; the last token completed it."""
    CUT = "cut"
    """Whoever listened wanted no more of it."""


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled.

    Attributes:
        temperature: 0 is greedy decoding, which ignores top_p, top_k and min_p.
        top_p: 1 keeps all tokens.
        top_k: 0 keeps all tokens.
        min_p: 0 keeps all tokens.
        repetition_penalty: applied to the tokens of the prompt and of the completion so far; 1 is none.
        stop: stop strings, searched for in the completion's text only.
        logprobs: whether completions include their log-probabilities.
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
        """The sampling options of a config section."""
        names = [field.name for field in fields(cls) if field.name != "logprobs"]
        return cls(**{name: getattr(section, name) for name in names}, logprobs=logprobs)


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt, and one seed for each completion wanted.

    The seeds determine the samples: repeating the same requests repeats the completions.
    """

    prompt_ids: tuple[int, ...]
    seeds: tuple[int, ...] = (0,)

    @property
    def n(self) -> int:
        """Number of completions wanted."""
        return len(self.seeds)


@dataclass(frozen=True)
class Completion:
    """One completion.

    Attributes:
        token_ids: includes the end token, if there is one.
        stop_reason: why the completion ended.
        logprobs: log p of each token, in nats, under the model's softmax at the sampling temperature (1 if that is 0),
            before the repetition penalty, top-p, top-k and min-p; None unless requested.
    """

    token_ids: tuple[int, ...]
    stop_reason: StopReason
    logprobs: tuple[float, ...] | None = None


class FinishedCompletions:
    """Completions by their prompt and seed, each from when it has ended; others may look while a thread adds to them.

    Completions of other weights, or sampled in another way, are kept in another one.
    """

    def __init__(self) -> None:
        self.heard: Callable[[Key, Completion], None] | None = None
        """Called with each completion that is added."""
        self._found: dict[tuple[tuple[int, ...], int], Completion] = {}

    def add(self, requests: Sequence[GenerationRequest], key: Key, completion: Completion) -> None:
        """Add the completion `key` of `requests`."""
        place, number = key
        self._found[requests[place].prompt_ids, requests[place].seeds[number]] = completion
        if self.heard is not None:
            self.heard(key, completion)

    def extend(
        self, requests: Sequence[GenerationRequest], made: Iterable[tuple[Key, Completion]]
    ) -> dict[Key, Completion]:
        """Add completions of `requests` as they come; returns what there is in the end, as `of`."""
        for key, completion in made:
            self.add(requests, key, completion)
        return self.of(requests)

    def of(self, requests: Sequence[GenerationRequest]) -> dict[Key, Completion]:
        """The completions of `requests` that are there, ordered by key."""
        return {
            (place, number): self._found[request.prompt_ids, seed]
            for place, request in enumerate(requests)
            for number, seed in enumerate(request.seeds)
            if (request.prompt_ids, seed) in self._found
        }

    def requests(self) -> list[GenerationRequest]:
        """The requests that ask for all that is there."""
        seeds: dict[tuple[int, ...], list[int]] = {}
        for prompt_ids, seed in list(self._found):
            seeds.setdefault(prompt_ids, []).append(seed)
        return [GenerationRequest(prompt_ids, tuple(several)) for prompt_ids, several in seeds.items()]


class Completer(Protocol):
    """Completes prompts."""

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        """All completions of all requests, of which those of the same prompt and seed count as one.

        Args:
            finished: those that an earlier call with these requests made are not made again, and the others are the
                same as without them. Each completion is added to it when it has ended.
        """
        ...

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of each token but the first, in nats, under the model's softmax at temperature 1."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class Engine(Completer, Protocol):
    """A loaded model that answers requests."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, *, done: AbstractSet[Key] = frozenset()
    ) -> Iterator[tuple[Key, Completion]]:
        """Yield completions as they finish, in any order.

        Completions in `done` are not yielded. Removing them from `requests` instead could change the samples of the
        others, if the engine batches its requests.
        """
        ...

    def token_logprobs(self, rows: Sequence[TokenRow]) -> Iterator[tuple[int, list[float]]]:
        """Yield (number of a row, log p of each of its trained tokens), in nats, at temperature 1, in any order.

        Each token is predicted from all before it; the first token of a row never counts.
        """
        ...


class Hear(Protocol):
    """Hears tokens while they are generated."""

    def __call__(self, key: Key, tokens: Sequence[int], /) -> bool:
        """Hear the next tokens of a completion, without its end token; False ends the completion here."""
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that tells each token when it is there."""

    def stream(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, hear: Hear
    ) -> Iterator[tuple[Key, Completion]]:
        """As `generate`, with the same completions, and `hear` is called with each of their tokens."""
        ...


def heard(
    engine: Engine, requests: Sequence[GenerationRequest], sampling: Sampling, hear: Hear
) -> Iterator[tuple[Key, Completion]]:
    """Generate with any engine: one that does not stream tells all tokens of a completion at once."""
    if isinstance(engine, StreamingEngine):
        yield from engine.stream(requests, sampling, hear)
        return
    for key, completion in engine.generate(requests, sampling):
        hear(key, without_end(completion))
        yield key, completion


class Generate(Protocol):
    """`Engine.generate`."""

    def __call__(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, *, done: AbstractSet[Key]
    ) -> Iterator[tuple[Key, Completion]]: ...


def complete_by(
    generate: Generate,
    requests: Sequence[GenerationRequest],
    sampling: Sampling,
    finished: FinishedCompletions | None,
) -> dict[Key, Completion]:
    """`Completer.complete` by means of `Engine.generate`."""
    finished = finished or FinishedCompletions()
    return finished.extend(requests, generate(requests, sampling, done=finished.of(requests).keys()))


class RolloutEngine(Completer, Protocol):
    """Completes prompts with the weights of a model in training, as of the last `load`."""

    def load(self, weights: Path | None, version: int) -> None:
        """Take over the weights in the folder `weights`, those after `version` optimizer steps.

        None if the engine uses the weights of the training model itself.
        """
        ...


def derive_seed(*parts: int) -> int:
    """A 56-bit seed that depends on all of `parts`, e.g. (seed, generation, slot, sample)."""
    text = ",".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())


def plan_batches(requests: Sequence[GenerationRequest], batch_size: int) -> list[tuple[Key, ...]]:
    """Batches of `batch_size` completions; those of one request are adjacent, but may be split across batches.

    The longest prompts come first: similar lengths need little padding, and a batch that does not fit into memory fails
    at once.
    """
    keys = [(position, sample) for position, request in enumerate(requests) for sample in range(request.n)]
    keys.sort(key=lambda key: (-len(requests[key[0]].prompt_ids), key))
    return [tuple(keys[start : start + batch_size]) for start in range(0, len(keys), batch_size)]


def plan_groups(lengths: Sequence[int], n: int, batch_size: int) -> list[list[int]]:
    """The smallest groups of requests with `n` completions each, of which `plan_batches` never puts two into one batch.

    If only some of the groups are asked, the batches of these stay as they are.

    Args:
        lengths: tokens of each prompt.
    """
    places = sorted(range(len(lengths)), key=lambda place: (-lengths[place], place))
    size = batch_size // math.gcd(n, batch_size)  # so that size x n is a multiple of batch_size
    return [places[start : start + size] for start in range(0, len(places), size)]


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of `ids`, with control tokens and with all whitespace kept."""
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def without_end(completion: Completion) -> tuple[int, ...]:
    """The tokens of a completion, without the end token if it has one."""
    return completion.token_ids[:-1] if completion.stop_reason is StopReason.END else completion.token_ids


def completion_text(tokenizer: Any, completion: Completion, stop: Sequence[str]) -> str:
    """The text of a completion, without the end token and up to the first stop string."""
    text = decode(tokenizer, without_end(completion))
    found = [position for string in stop if (position := text.find(string)) >= 0]
    return text[: min(found)] if found else text
