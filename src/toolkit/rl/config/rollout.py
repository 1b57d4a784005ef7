"""How completions are sampled from the model in training."""

from typing import Literal

from pydantic import Field, model_validator

from toolkit.core.config.generation import SamplingConfig

Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


class RolloutConfig(SamplingConfig):
    """The completions that are trained on: groups of `generations` for each prompt."""

    temperature: float = Field(default=1.0, ge=0)
    """1 samples as the model's own probabilities are; higher is more varied."""

    generations: int = Field(default=8, ge=2)
    """Completions of each prompt, against whose mean reward each of them is judged."""

    steps_per_generation: int | None = Field(default=None, ge=1)
    """Micro-batches that one round of generation serves; those of one optimizer step unless given."""

    iterations: int = Field(default=1, ge=1)
    """How often each completion is trained on."""

    batch_size: int = Field(default=64, ge=1)
    """Completions that are generated at once."""

    max_prompt_tokens: int = Field(default=1024, ge=1)
    """Longer prompts are passed over and counted: none of their completions is generated or trained."""

    importance_correction: Correction = "none"
    """How the loss makes up for sampling probabilities that differ from the training model's own: not at all, or by
    their ratio per token or per completion, cut at a limit (truncate) or left out beyond it (mask)."""

    importance_limit: float = Field(default=3.0, gt=1)
    """The limit of that ratio."""

    @model_validator(mode="after")
    def _completions_differ(self) -> "RolloutConfig":
        if self.temperature == 0:
            raise ValueError(
                "temperature: 0 makes all completions of a prompt the same, which teaches nothing; 1 is usual"
            )
        return self
