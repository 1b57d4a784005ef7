"""What one generation server offers, what a run needs of it, and the checks of what it answers."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from posttrain.base.http import PassingError
from posttrain.config.sections.servers import WeightsSent
from posttrain.errors import ServerError
from posttrain.inference.engine import Completion, Sampling, StopReason


@dataclass(frozen=True)
class Needs:
    """What a run needs of its servers.

    Attributes:
        model: the model's folder or Hugging Face id, to be named in commands.
        dtype: of the weights, under torch's name: bfloat16, float16 or float32.
        max_length: maximum number of tokens of a prompt and its completion together.
        end_ids: tokens that end a completion.
        adapter_rank: rank of the adapters; 0 if whole weights are sent.
        weights: what the servers receive.
        request_seconds: how long a server may take for one completion.
        control_seconds: how long it may take to load weights, or to finish what runs before.
    """

    model: str
    dtype: str
    max_length: int
    end_ids: frozenset[int]
    adapter_rank: int = 0
    weights: WeightsSent = "folder"
    request_seconds: float = 600.0
    control_seconds: float = 600.0


class ServerOutageError(ServerError):
    """Too few servers work, and waiting did not help."""


class StaleError(PassingError):
    """The server no longer has the weights that it was given, e.g. because it was restarted."""


class Server(Protocol):
    """One server: token ids in, token ids out, and weights by path.

    `label` names weights on the servers: a version and a random part, so that no two loads share one. None stands for
    the weights that the server was started with. Every method but `close` raises PassingError if no valid answer came,
    and ServerError if the server refuses or its answers cannot be used.
    """

    place: str
    """Its kind and address, for messages."""

    async def check(self) -> str:
        """Refuse a server that lacks what the run needs, with the command that would be right; return its version."""
        ...

    async def require_closed(self) -> None:
        """Refuse a server that takes weights from somebody who does not know its key."""
        ...

    async def is_alive(self) -> bool:
        """Whether it says that it works; raises nothing."""
        ...

    async def load(self, folder: str, label: str) -> None:
        """Take over the weights in `folder`, a path on the server; it must be idle. Nothing cached remains in use."""
        ...

    async def generate(self, prompt_ids: Sequence[int], seed: int, sampling: Sampling, label: str | None) -> Completion:
        """One completion; StaleError if it may be by other weights than those of `label`."""
        ...

    async def score(self, ids: Sequence[int], label: str | None) -> list[float]:
        """log p of ids[1:] at temperature 1, in nats; StaleError as above."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def completion(
    place: str,
    token_ids: Any,
    logprobs: Any,
    ended: StopReason,
    sampling: Sampling,
) -> Completion:
    """A completion from a server's answer.

    Raises:
        PassingError: the answer breaks off before its end.
        ServerError: it has no token ids, or not one log-probability for each, though they were asked for.
    """
    if not isinstance(token_ids, list) or not token_ids or not all(type(each) is int for each in token_ids):
        raise ServerError(f"{place} returned a completion without token ids")
    if ended is StopReason.LENGTH and len(token_ids) != sampling.max_new_tokens:
        raise PassingError(f"{place} stopped after {len(token_ids)} of {sampling.max_new_tokens} tokens")
    if not sampling.logprobs:
        return Completion(tuple(token_ids), ended)
    return Completion(tuple(token_ids), ended, tuple(numbers(place, logprobs, len(token_ids))))


def numbers(place: str, values: Any, count: int) -> list[float]:
    """Log-probabilities from a server's answer; ServerError unless they are `count` finite numbers of at most 0."""
    if not isinstance(values, list) or len(values) != count:
        found = len(values) if isinstance(values, list) else "no"
        raise ServerError(f"{place} returned {found} log-probabilities for {count} tokens")
    for value in values:
        # Rounding can make a certainty a little more than 1.
        if not isinstance(value, int | float) or not math.isfinite(value) or value > 1e-3:
            raise ServerError(f"{place} returned {value} as a log-probability")
    return [float(value) for value in values]


def end_reason(place: str, token_ids: Any, matched: Any, end_ids: frozenset[int]) -> StopReason:
    """END or STOP, by what stopped a completion; ServerError if that is no end token of this run."""
    if isinstance(matched, str):
        return StopReason.STOP
    if matched not in end_ids or token_ids[-1:] != [matched]:
        raise ServerError(
            f"{place} ends completions at token {matched}, which is no end token of this model: let it serve the same "
            "model, with the same generation_config.json"
        )
    return StopReason.END


def command_line(environment: Mapping[str, str], command: Sequence[str], settings: Mapping[str, Any]) -> str:
    """A command for a message: settings that are True are flags."""
    before = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    after = [f"--{key}" if value is True else f"--{key} {shlex.quote(str(value))}" for key, value in settings.items()]
    return " ".join([*before, *map(shlex.quote, command), *after])
