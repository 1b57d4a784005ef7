"""Config section `evaluation` of supervised fine-tuning and preference optimisation: graded answers during training."""

from pydantic import Field, model_validator

from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import OneLine


class GradedEvaluationConfig(StrictModel):
    """Answers to held-out prompts during training, graded as by `toolkit-eval`."""

    tasks: ConfigPath
    """A config of `toolkit-eval` whose graded tasks are used, with its sampling options; its models are not."""

    only: tuple[OneLine, ...] = ()
    """Names of the tasks; all graded ones by default. The mean reward of the first one decides which checkpoint is the
    best, and when `patience` ends."""

    every: int = Field(default=50, ge=1)
    """Optimizer steps between evaluations."""

    at_start: bool = True
    """Also evaluate before the first step, to see what training changes."""

    prompts: int | None = Field(default=None, ge=1)
    """Ask at most this many prompts of each task; null asks as many as the task says."""

    patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations in a row without a better reward; null never stops early."""

    min_improvement: float = Field(default=0.0, ge=0)
    """How much higher the reward must be to count as better for `patience`."""

    @model_validator(mode="after")
    def _improvement_is_read(self) -> "GradedEvaluationConfig":
        if self.min_improvement and self.patience is None:
            raise ValueError("min_improvement has no effect without patience; give patience too, or leave it out")
        return self
