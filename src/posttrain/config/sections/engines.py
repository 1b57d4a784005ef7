"""Generation engines: their names in a config, and what each can do."""

import math
from dataclasses import dataclass
from typing import Literal

LocalEngine = Literal["hf", "vllm"]
EngineName = Literal[LocalEngine, "vllm-server", "sglang-server", "own"]
"""Engines for rollouts; `own` is a class of the user's, which a config names by its file."""
Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


@dataclass(frozen=True)
class EngineTraits:
    """What an engine can do.

    Attributes:
        title: its name in a sentence.
        has_weights: whether it keeps a copy of the weights, updated after each step. Otherwise it generates with the
            training model, `rollout.batch_size` completions at once.
        is_beside: whether that copy is in a share of the training model's device (`rollout.gpu_memory_utilization`).
        is_server: whether it is behind servers (`rollout.servers`), which generate while the model learns.
        takes_adapter: whether it can be updated with the adapter alone (`rollout.sync`).
        compiles: whether it can compile its copy of the model (`rollout.compile`).
        sleeps: whether it can give up its share while the model learns (`rollout.sleep`).
        extra: the extra of this package that installs it, also the name of its package and module; None if `train` is
            enough.
        correction: what `rollout.importance_correction: auto` means: `none` only if its sampling probabilities equal
            the training model's bit for bit.
        samples_quantised: whether it can sample from a quantised base without dequantising it.
        highest_temperature: the highest temperature that it accepts.
        refuses_long: whether it refuses to start unless the longest prompt and completion that the config allows fit
            into the model.
    """

    title: str
    has_weights: bool = False
    is_beside: bool = False
    is_server: bool = False
    takes_adapter: bool = False
    compiles: bool = False
    sleeps: bool = False
    extra: str | None = None
    correction: Correction = "none"
    samples_quantised: bool = True
    highest_temperature: float = math.inf
    refuses_long: bool = False

    def require_temperature(self, temperature: float) -> None:
        """Raise ValueError if `temperature` is higher than the engine accepts."""
        if temperature > self.highest_temperature:
            raise ValueError(
                f"temperature: {temperature:g} is more than {self.title} accepts; at most {self.highest_temperature:g}"
            )


ENGINES: dict[EngineName, EngineTraits] = {
    "hf": EngineTraits("transformers"),
    "vllm": EngineTraits(
        "vLLM",
        has_weights=True,
        is_beside=True,
        takes_adapter=True,
        compiles=True,
        sleeps=True,
        extra="vllm",
        correction="sequence_mask",
        samples_quantised=False,
        highest_temperature=2,
        refuses_long=True,
    ),
    "vllm-server": EngineTraits(
        "vLLM",
        has_weights=True,
        is_server=True,
        correction="sequence_mask",
        samples_quantised=False,
        highest_temperature=2,
        refuses_long=True,
    ),
    "sglang-server": EngineTraits(
        "SGLang",
        has_weights=True,
        is_server=True,
        correction="sequence_mask",
        samples_quantised=False,
        refuses_long=True,
    ),
    "own": EngineTraits("an engine of your own", has_weights=True, correction="sequence_mask", samples_quantised=False),
}
