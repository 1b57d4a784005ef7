"""The engines that generate: their names in a config, and what each of them can do."""

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
        has_weights: whether it has weights of its own, to which those of each step are brought, and a share of the
            training model's device for them (`rollout.gpu_memory_utilization`). If not, it generates with the training
            model, `rollout.batch_size` completions at once.
        takes_adapter: whether `rollout.sync` can bring it the adapter alone.
        sleeps: whether `rollout.sleep` can have it leave its share while the model learns.
        extra: of this package, named as the package and the module that it installs; None where `train` is enough.
        correction: what `rollout.importance_correction: auto` is: `none` where what it samples by are, to the last
            digit, the training model's own probabilities.
        is_quantised: whether it samples from a quantised base as that is quantised.
        highest_temperature: that it samples at.
        refuses_long: whether it wants all prompts and completions to fit into the model, and not only those there are.
    """

    title: str
    has_weights: bool = False
    takes_adapter: bool = False
    sleeps: bool = False
    extra: str | None = None
    correction: Correction = "none"
    is_quantised: bool = True
    highest_temperature: float = math.inf
    refuses_long: bool = False

    def require_temperature(self, temperature: float) -> None:
        """Raise ValueError where it would not sample at `temperature`."""
        if temperature > self.highest_temperature:
            raise ValueError(
                f"temperature: {temperature:g} is more than {self.title} takes; at most {self.highest_temperature:g}"
            )


ENGINES: dict[EngineName, EngineTraits] = {
    "hf": EngineTraits("transformers"),
    "vllm": EngineTraits(
        "vLLM",
        has_weights=True,
        takes_adapter=True,
        sleeps=True,
        extra="vllm",
        correction="sequence_mask",
        is_quantised=False,
        highest_temperature=2,
        refuses_long=True,
    ),
}
