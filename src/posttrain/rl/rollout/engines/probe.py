"""Prove that an engine computes with the weights that it was given, before anything is trained on its completions."""

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


class SyncProbe:
    """Compares an engine with the training model on a fixed text, after each load of weights.

    Scores show weights that did not arrive. Sampled tokens also show a cache of prompts that was computed with older
    weights, which no score reads, and log-probabilities that are not at the sampling temperature.
    """

    def __init__(self, loaded: LoadedModel, room: int) -> None:
        """`loaded`: the model in training; `room`: tokens that the engine can hold."""
        tokenizer: Any = loaded.tokenizer
        ids = tokenizer(_TEXT, add_special_tokens=False)["input_ids"]
        self._ids = tuple(ids[: min(_TOKENS, room - 1)])
        self._trained = LoadedModelEngine(loaded, frozenset(), 1)
        # In 16 bits, vLLM and transformers differ by 0.04 nats on average for a model of 135 M parameters.
        self._limit = _LIMIT if loaded.compute_dtype is torch.float32 else _LIMIT_16_BIT
        self._before: tuple[Expected, npt.NDArray[np.float64]] | None = None

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
        self._require_near(answer.logprobs - expected.logprobs, "scores a fixed text", version)
        differences = [logprob - expected.next[token] for token, logprob in answer.sampled]
        self._require_near(np.array(differences), f"samples at temperature {_TEMPERATURE:g}", version)
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

    def _require_near(self, differences: npt.NDArray[np.float64], doing: str, version: int) -> None:
        mean = float(np.abs(differences).mean())
        if not mean <= self._limit:
            raise WrongWeightsError(
                f"the engine {doing} with other log-probabilities than the model after optimizer step {version}: they "
                f"differ by {mean:.3g} nats on average, where {self._limit:g} is allowed; it has other weights, a "
                "cache of older ones, or returns log-probabilities that are not at the sampling temperature"
            )
