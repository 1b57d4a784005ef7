"""Questions that show whether a server samples as it says: seeds, log-probabilities, and weights behind its cache.

What a server states about itself can be wrong; its answers to these cannot be right by chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from posttrain.errors import ConfigError, ServerError
from posttrain.inference.engine import Sampling
from posttrain.inference.servers.wire import Needs, Server

_NEW_TOKENS = 16
_SEEDS = (1, 2, 3, 4)
_HOT, _COLD = 2.0, 0.1
# Longer than a block of vLLM's prefix cache (128 tokens on a CPU): a shorter prompt is never cached.
_PROMPT = tuple(3 + (7 * at) % 61 for at in range(192))
_TOLERANCES = {"float32": 0.01, "float16": 0.05, "bfloat16": 0.1}


@dataclass(frozen=True)
class Findings:
    """What the questions showed.

    `repeats`: whether the same seeds gave the same completions twice.
    """

    repeats: bool


def tolerance(needs: Needs) -> float:
    """How far two computations of the same log-probabilities may be apart on average, in nats."""
    return _TOLERANCES[needs.dtype]


def _prompt(needs: Needs) -> tuple[int, ...]:
    """As long as a cache of prompts needs, if the model can hold that."""
    # To score a text, a server needs room for one token more.
    return _PROMPT[: max(2, needs.max_length - _NEW_TOKENS - 1)]


def mean_difference(left: Sequence[float], right: Sequence[float]) -> float:
    """Mean of the absolute differences; both are equally long and not empty."""
    return fmean(abs(one - other) for one, other in zip(left, right, strict=True))


async def examine(server: Server, needs: Needs, label: str | None) -> Findings:
    """Ask a server whether its samples can be trained on.

    Raises:
        ConfigError: its log-probabilities ignore the temperature, or other seeds give the same completions.
        PassingError: a question was not answered.
        ServerError: it refuses, or returns no log-probabilities.
    """
    prompt, hot = _prompt(needs)[:32], Sampling(_NEW_TOKENS, temperature=_HOT, logprobs=True)
    answers = [await server.generate(prompt, seed, hot, label) for seed in _SEEDS]
    if len({answer.token_ids for answer in answers}) == 1:
        raise ConfigError(f"{server.place} gives the same completion for every seed, so a group would teach nothing")
    cold = await server.generate(prompt, 1, Sampling(_NEW_TOKENS, temperature=_COLD, logprobs=True), label)
    differences = []
    for answer in (answers[0], cold):
        plain = (await server.score([*prompt, *answer.token_ids], label))[-len(answer.token_ids) :]
        differences.append(mean_difference(answer.logprobs or (), plain))
    if max(differences) < tolerance(needs):
        raise ConfigError(
            f"{server.place} returns log-probabilities that ignore the temperature: vLLM needs "
            "--logprobs-mode processed_logprobs"
        )
    again = [await server.generate(prompt, seed, hot, label) for seed in _SEEDS]
    return Findings(repeats=[each.token_ids for each in again] == [each.token_ids for each in answers])


async def weights_in_use(server: Server, needs: Needs, label: str | None) -> list[float]:
    """log p of the probe's prompt, in nats, after a check that sampling uses the weights that scoring uses.

    A cache of prompts that outlives its weights shows here: what is sampled after the cached prompt has other
    log-probabilities than the same tokens when the whole text is scored.

    Raises:
        ServerError: the two differ.
    """
    prompt = _prompt(needs)
    sampled = await server.generate(prompt, 0, Sampling(_NEW_TOKENS, temperature=1.0, logprobs=True), label)
    scores = await server.score([*prompt, *sampled.token_ids], label)
    off = mean_difference(sampled.logprobs or (), scores[-len(sampled.token_ids) :])
    if off > tolerance(needs):
        raise ServerError(
            f"{server.place} samples with other weights than it scores with: log-probabilities differ by {off:.2g} "
            "nats on average. It has kept parts of earlier weights, such as cached prompts"
        )
    return scores[: len(prompt) - 1]


def require_scores(place: str, found: Sequence[float], expected: Sequence[float], most: float) -> None:
    """Raise ServerError if log-probabilities differ by more than `most` nats on average.

    With `expected` from the model in training, this shows that its weights have arrived.
    """
    off = mean_difference(found, expected)
    if off > most:
        raise ServerError(
            f"{place} does not have the weights that it was given: its log-probabilities differ by {off:.2g} nats on "
            f"average, and {most:g} are allowed"
        )
