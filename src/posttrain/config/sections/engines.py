"""Generation engines: their names in a config, and what each can do."""

import math
from dataclasses import dataclass
from typing import Literal

EngineName = Literal["hf", "vllm"]
Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


@dataclass(frozen=True)
class EngineTraits:
    """What an engine can do.

    Attributes:
        title: its name in a sentence.
        has_weights: whether it keeps a copy of the weights, updated after each step, in a share of the training
            model's device (`rollout.gpu_memory_utilization`). Otherwise it generates with the training model,
            `rollout.batch_size` completions at once.
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
        takes_adapter=True,
        compiles=True,
        sleeps=True,
        extra="vllm",
        correction="sequence_mask",
        samples_quantised=False,
        highest_temperature=2,
        refuses_long=True,
    ),
}
