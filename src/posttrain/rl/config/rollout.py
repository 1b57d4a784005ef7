"""Config section `rollout`: how completions are sampled during training."""

from typing import Literal

from pydantic import Field, model_validator

from posttrain.config.sections.engines import ENGINES, Correction, EngineName, EngineTraits
from posttrain.config.sections.generation import SamplingConfig

# What changes a model's own probabilities, with the values that do not.
_FILTERS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


class RolloutConfig(SamplingConfig):
    """The completions that are trained on: groups of `generations` for each prompt."""

    temperature: float = Field(default=1.0, ge=0)
    """1 samples as the model's own probabilities are; higher is more varied."""

    generations: int = Field(default=8, ge=2)
    """Completions of each prompt, against whose mean reward each of them is judged."""

    steps_per_generation: int = Field(default=1, ge=1)
    """Optimizer steps that go once through what was generated, each with its own part of the prompts."""

    iterations: int = Field(default=1, ge=1)
    """How often what was generated is gone through, and so each completion is trained on."""

    engine: EngineName = "hf"
    """What generates: the training model by transformers, which repeats exactly; or vLLM beside it, which is
    several times as fast (`pip install 'posttrain-toolkit[vllm]'`; the README says how on a CPU)."""

    compile: bool | Literal["auto"] = "auto"
    """Whether vLLM compiles its model: 1.4 times as fast on a CPU, after 45 s more at the first start and 6 s at later
    ones. `auto` does so on CUDA, and on a CPU where the layers that train are compiled too."""

    sync: Literal["auto", "adapter", "weights"] = "auto"
    """What vLLM gets of each optimizer step: the LoRA adapter alone, or all weights with it folded in; `auto` takes
    the adapter on CUDA, unless vLLM cannot use it as it is."""

    gpu_memory_utilization: float = Field(default=0.3, gt=0, lt=1)
    """Share of a CUDA device for vLLM's weights, keys and values, beside the training model."""

    sleep: bool = False
    """Whether vLLM leaves its share to the training model while that learns (CUDA): the share can be larger, and its
    weights go to the machine's memory and back at each step."""

    batch_size: int = Field(default=64, ge=1)
    """Completions that `hf` generates at once; vLLM fills its own batches."""

    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Longer prompts are passed over and counted: none of their completions is generated or trained."""

    importance_correction: Literal["auto"] | Correction = "auto"
    """How the loss makes up for sampling probabilities that differ from the training model's own: not at all, or by
    their ratio per token or per completion, cut at a limit (truncate) or left out beyond it (mask); `auto` is
    sequence_mask with vLLM, and none with the training model."""

    importance_limit: float = Field(default=3.0, gt=1)
    """The limit of that ratio."""

    @property
    def traits(self) -> EngineTraits:
        """What the engine can do."""
        return ENGINES[self.engine]

    @property
    def correction(self) -> Correction:
        """`importance_correction`, with `auto` resolved."""
        return self.traits.correction if self.importance_correction == "auto" else self.importance_correction

    @model_validator(mode="after")
    def _correction_compares_like_with_like(self) -> "RolloutConfig":
        filters = [name for name, neutral in _FILTERS.items() if getattr(self, name) != neutral]
        if self.correction != "none" and filters:
            raise ValueError(
                f"importance_correction: {self.correction} compares the model's own probabilities, which "
                f"{', '.join(filters)} would change; leave that out, or set importance_correction: none"
            )
        return self

    @model_validator(mode="after")
    def _engine_takes_it(self) -> "RolloutConfig":
        self.traits.require_temperature(self.temperature)
        if self.sleep and not self.traits.is_beside:
            able = " or ".join(name for name, traits in ENGINES.items() if traits.is_beside)
            raise ValueError(f"sleep: true is for engine: {able}, and this is {self.engine}; leave it out")
        return self

    @model_validator(mode="after")
    def _completions_differ(self) -> "RolloutConfig":
        if self.temperature == 0:
            raise ValueError(
                "temperature: 0 makes all completions of a prompt the same, so nothing can be learnt; 1 is usual"
            )
        return self
