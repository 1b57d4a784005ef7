"""What generates: token ids in, token ids out. Predict, chat, evaluation and RL rollouts talk to this alone.

Text never crosses this border, so what is asked of a model is, id for id, what it was trained to continue.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    """The model ended its turn: the last token is one of the end ids."""
    LENGTH = "length"
    """It reached `max_new_tokens`."""
    STOP = "stop"
    """A stop string turned up in its text."""


@dataclass(frozen=True)
class Sampling:
    """How completions are sampled; temperature 0 is greedy decoding."""

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    logprobs: bool = False


@dataclass(frozen=True)
class GenerationRequest:
    """`n` completions of one prompt. `seed` decides the samples where the engine can seed each request."""

    prompt_ids: tuple[int, ...]
    n: int = 1
    seed: int = 0


@dataclass(frozen=True)
class Completion:
    """One answer.

    Attributes:
        token_ids: with the end token, where there is one.
        stop_reason: why it ended.
        logprobs: log p of each token, in nats, at the sampling temperature, before top-p, top-k and min-p;
            None unless `Sampling.logprobs` asked for them.
    """

    token_ids: tuple[int, ...]
    stop_reason: StopReason
    logprobs: tuple[float, ...] | None = None


class Engine(Protocol):
    """A loaded model that answers requests."""

    end_ids: frozenset[int]
    """Ids that end an assistant turn."""

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Yield (index of the request, its n completions) as they are done, in whatever order suits the engine."""
        ...

    def close(self) -> None:
        """Give back the memory."""
        ...
