"""Prove that an engine computes with the weights that it was given, before anything is trained on its completions."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load, save

from posttrain.base.files import atomic_write_bytes
from posttrain.base.text import as_shown, first_line
from posttrain.errors import DataError, ServerError
from posttrain.inference.engine import GenerationRequest, RolloutEngine, Sampling
from posttrain.inference.loaded import LoadedModelEngine
from posttrain.models.backend import LoadedModel

# Longer than a block of an engine's cache of prompts (128 tokens at most), so that old blocks would show.
_TOKENS = 136
_TEXT = (
    "A town on a river had one bridge. Farmers crossed it every morning with milk and eggs, and every evening they "
    "came back with salt, nails and news. When the spring flood took the bridge away, the mayor asked what a new one "
    "would cost. The carpenter said: forty oak beams, two hundred planks and three weeks. The mason said: six hundred "
    "stones, nine carts of lime and a whole summer, but your children's children will cross it. They argued until "
    "midnight. Then the baker's daughter, who had listened from the stairs, asked how deep the water was in August. "
    "Nobody knew. Next morning she walked into the river with a long stick, and on the other bank stood"
)
_TEMPERATURE = 0.7
_SEEDS = tuple(range(8))
# Stale weights show only if the new ones are far enough from them, in nats per token: an engine may round small
# changes away.
_CHANGE = 0.01
_LIMIT, _LIMIT_16_BIT = 1e-3, 0.15
# Of 8 tokens after one text, which have the rounding errors of one position: their mean varies far more than that of
# the scores, and would be above 0.15 once in 500 loads. At temperature 1 instead of 0.7 it is 0.7.
_SAMPLED_LIMIT_16_BIT = 0.3
# Standard deviations; by chance, 1 load in 66 million has as much evidence.
_BEHIND = 6.0


class WrongWeightsError(ServerError):
    """An engine computes with other weights than it was given, or returns other log-probabilities than it should."""


@dataclass(frozen=True)
class Expected:
    """What the training model computes for the probe's text.

    Attributes:
        logprobs: log p of each token but the first, shape [tokens − 1].
        next: log p of every token that may follow, at the probe's temperature, shape [vocabulary].
    """

    logprobs: npt.NDArray[np.float64]
    next: npt.NDArray[np.float64]

    def write(self, file: Path) -> None:
        """Write it to a file that `read` reads."""
        atomic_write_bytes(file, save({"logprobs": self.logprobs, "next": self.next}))

    @classmethod
    def read(cls, file: Path) -> "Expected":
        """What `write` wrote; DataError if the file is missing or damaged."""
        try:
            return cls(**load(file.read_bytes()))
        except (OSError, SafetensorError, TypeError) as error:
            raise DataError(f"{as_shown(file)} is missing or damaged: {first_line(error)}") from None


@dataclass(frozen=True)
class Answer:
    """What an engine computes for the probe's text.

    Attributes:
        logprobs: log p of each token but the first, shape [tokens − 1].
        sampled: a token that may follow and its log p at the probe's temperature, for each seed.
    """

    logprobs: npt.NDArray[np.float64]
    sampled: tuple[tuple[int, float], ...]


class Evidence:
    """Evidence from several loads that an engine is one version of the weights behind.

    For each token, x = (a − e)² − (a − e′)², where a is the engine's log p, e the model's, and e′ the model's one
    version before. If all that differs is rounding, x is as often above 0 as below. Then Σx exceeds z·√Σx² with a
    probability of at most exp(−z²/2) (W. Hoeffding, "Probability inequalities for sums of bounded random variables",
    1963, theorem 2, given all |x|). The sum starts again when it falls below 0 (E. S. Page, "Continuous inspection
    schemes", 1954), so that it does not matter how long the engine was right before.
    """

    def __init__(self) -> None:
        self._sum = self._squares = 0.0

    def add(
        self, found: npt.NDArray[np.float64], now: npt.NDArray[np.float64], before: npt.NDArray[np.float64]
    ) -> float:
        """z after a load; the arguments are a, e and e′, shape [tokens]."""
        differences = (found - now) ** 2 - (found - before) ** 2
        self._sum += float(differences.sum())
        self._squares += float((differences**2).sum())
        if self._sum <= 0:
            self._sum = self._squares = 0.0
            return 0.0
        return self._sum / math.sqrt(self._squares)


class SyncProbe:
    """Compares an engine with the training model on a fixed text, after each load of weights.

    Scores show weights that did not arrive, or those of the version before. Sampled tokens also show a cache of prompts
    that was computed with older weights, which no score reads, and log-probabilities that are not at the sampling
    temperature.
    """

    def __init__(self, loaded: LoadedModel, room: int, *, is_copy: bool = False) -> None:
        """Start before the first load.

        Args:
            loaded: the model in training.
            room: tokens that the engine can hold.
            is_copy: whether the engine is a copy of the model in transformers, which scores a text in the same way.
        """
        tokenizer: Any = loaded.tokenizer
        ids = tokenizer(_TEXT, add_special_tokens=False)["input_ids"]
        self._ids = tuple(ids[: min(_TOKENS, room - 1)])
        self._trained = LoadedModelEngine(loaded, frozenset(), 1)
        # In 16 bits, vLLM and transformers differ by 0.05 nats on average for a model of 135 M parameters, and so do
        # transformers with and without a cache of the prompt, and the model before and after any small change.
        is_exact = loaded.compute_dtype is torch.float32
        self._score_limit = _LIMIT if is_exact or is_copy else _LIMIT_16_BIT
        self._sampled_limit = _LIMIT if is_exact else _SAMPLED_LIMIT_16_BIT
        self._before: tuple[Expected, npt.NDArray[np.float64]] | None = None
        self._last: Expected | None = None
        self._behind = Evidence()

    def expected(self) -> Expected:
        """What the training model computes now."""
        logits = self._trained.logits(self._ids)
        scores = logits[:-1].log_softmax(dim=-1)[range(len(self._ids) - 1), self._ids[1:]]
        following = (logits[-1] / _TEMPERATURE).log_softmax(dim=-1)
        return Expected(scores.double().cpu().numpy(), following.double().cpu().numpy())

    def ask(self, engine: RolloutEngine) -> Answer:
        """What an engine, which has just loaded weights, computes."""
        # All is asked before anything is judged, since ranks may have to ask together.
        found = np.array(engine.score(self._ids))
        sampling = Sampling(max_new_tokens=1, temperature=_TEMPERATURE, logprobs=True)
        sampled = engine.complete([GenerationRequest(self._ids, _SEEDS)], sampling).values()
        return Answer(
            found, tuple(pair for each in sampled for pair in zip(each.token_ids, each.logprobs or (), strict=True))
        )

    def check(self, answer: Answer, expected: Expected, version: int) -> None:
        """Compare what the engine computed with what the training model did, by the weights after `version` steps.

        Raises:
            WrongWeightsError: they differ.
        """
        is_new = self._is_new(answer.logprobs, expected, version)
        self._require_near(answer.logprobs - expected.logprobs, self._score_limit, "scores a fixed text", version)
        differences = [logprob - expected.next[token] for token, logprob in answer.sampled]
        self._require_near(
            np.array(differences), self._sampled_limit, f"samples at temperature {_TEMPERATURE:g}", version
        )
        self._require_not_behind(answer.logprobs, expected, version)
        if is_new:
            self._before = expected, answer.logprobs

    def _is_new(self, found: npt.NDArray[np.float64], expected: Expected, version: int) -> bool:
        """Whether the engine computes other numbers than before; WrongWeightsError if it should but does not."""
        if self._before is None:
            return True
        model_before, engine_before = self._before
        change = float(np.abs(expected.logprobs - model_before.logprobs).mean())
        is_new = not np.array_equal(found, engine_before)
        if change > _CHANGE and not is_new:
            raise WrongWeightsError(
                f"the engine did not take over the weights after optimizer step {version}: it computes exactly what it "
                f"did with older weights, although the model has changed by {change:.3g} nats per token since"
            )
        return is_new

    def _require_not_behind(self, found: npt.NDArray[np.float64], expected: Expected, version: int) -> None:
        last, self._last = self._last, expected
        if last is None or np.abs(expected.logprobs - last.logprobs).mean() <= _CHANGE:
            return
        evidence = self._behind.add(found, expected.logprobs, last.logprobs)
        if evidence > _BEHIND:
            raise WrongWeightsError(
                f"the engine is behind the weights after optimizer step {version}: its log-probabilities are nearer to "
                f"those of the model before its last change, by {evidence:.3g} standard deviations"
            )

    def _require_near(self, differences: npt.NDArray[np.float64], limit: float, doing: str, version: int) -> None:
        mean = float(np.abs(differences).mean())
        if not mean <= limit:
            raise WrongWeightsError(
                f"the engine {doing} with other log-probabilities than the model after optimizer step {version}: they "
                f"differ by {mean:.3g} nats on average, where {limit:g} is allowed; it has other weights, a "
                "cache of older ones, or returns log-probabilities that are not at the sampling temperature"
            )
