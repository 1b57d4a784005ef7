"""Config section `training`: optimizer, learning-rate schedule, and the shape of a step."""

import math
from typing import Literal

from pydantic import Field, model_validator

from posttrain.base.processes import process_count
from posttrain.config.sections.schedules import ScheduleConfig, ScheduleName
from posttrain.config.strict import StrictModel
from posttrain.errors import ConfigError

# The rows of a step are listed one by one, also to estimate the step's cost.
_MOST_ROWS = 2**20
_WITH_LOWEST = ("cosine", "polynomial", "warmup_stable_decay")
_DECAY_RATIO = 0.1


class TrainingConfig(StrictModel):
    """One optimizer step trains on `rows_per_step` rows, however many devices share the work."""

    rows_per_step: int = Field(default=16, ge=1)
    """Rows per optimizer step, across all devices."""

    micro_batch_size: int = Field(default=4, ge=1)
    """Rows that go through the model at once on one device; affects memory and speed, not the training result."""

    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many optimizer steps; by default at the end of the last stage."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed for the curriculum, the validation split, the adapter's initial weights and dropout."""

    learning_rate: float = Field(default=2e-4, gt=0)
    """Peak learning rate."""

    schedule: ScheduleName | ScheduleConfig = "cosine"
    """How the learning rate falls after the warm-up: a name, or a section with `kind` and options; `constant` keeps it,
    `warmup_stable_decay` keeps it until the last tenth of the run."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""

    warmup_ratio: float | None = Field(default=None, ge=0, lt=1)
    """Or: the share of all steps over which it rises, rounded up to whole steps."""

    min_learning_rate_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Final learning rate of a `cosine`, `polynomial` or `warmup_stable_decay` schedule, as a share of the peak."""

    optimizer: Literal["adamw", "adamw_8bit", "sgd"] = "adamw"
    """AdamW from torch, AdamW with 8-bit states from bitsandbytes (CUDA only), or plain SGD."""

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's decay rate for the mean of the gradient."""

    beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW's decay rate for the mean of the squared gradient."""

    epsilon: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""

    max_grad_norm: float = Field(default=1.0, ge=0)
    """Clip the gradient to this norm; 0 disables clipping."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, but about a third slower."""

    compile: bool | Literal["auto"] = "auto"
    """Train with torch.compile (`backend: hf`): saves a third of the time on a CPU, after compiling for half a minute,
    or for a few seconds if it was compiled before. `auto` uses it on a CPU with a C++ compiler if the run is long
    enough."""

    liger_kernel: bool = False
    """Use Liger's Triton kernels for the model's norms, rotary embedding and activation (CUDA, `backend: hf`, and `pip
    install liger-kernel`); they round differently."""

    @model_validator(mode="after")
    def _step_divides(self) -> "TrainingConfig":
        if self.rows_per_step > _MOST_ROWS:
            raise ValueError(f"rows_per_step {self.rows_per_step} is more than one step can have; at most {_MOST_ROWS}")
        if self.rows_per_step % self.micro_batch_size:
            raise ValueError(
                f"rows_per_step {self.rows_per_step} is not a multiple of micro_batch_size "
                f"{self.micro_batch_size}; choose a micro_batch_size that divides it"
            )
        return self

    @model_validator(mode="after")
    def _schedule_is_one(self) -> "TrainingConfig":
        if self.warmup_steps and self.warmup_ratio is not None:
            raise ValueError("give either warmup_steps or warmup_ratio (a share of all steps), not both")
        if self.min_learning_rate_ratio and self.schedule_options.kind not in _WITH_LOWEST:
            raise ValueError(f"min_learning_rate_ratio is for schedule: {', '.join(_WITH_LOWEST)}; leave it out")
        return self

    @property
    def schedule_options(self) -> ScheduleConfig:
        """The schedule as a section."""
        return ScheduleConfig(kind=self.schedule) if isinstance(self.schedule, str) else self.schedule

    def warmup(self, max_steps: int) -> int:
        """Steps of the warm-up in a run of `max_steps`."""
        return self.warmup_steps if self.warmup_ratio is None else whole_steps(self.warmup_ratio, max_steps)

    def decay(self, max_steps: int) -> int:
        """Steps in which a `warmup_stable_decay` schedule falls."""
        return whole_steps(self.schedule_options.decay_ratio or _DECAY_RATIO, max_steps)


def whole_steps(ratio: float, steps: float) -> int:
    """A share or a multiple of `steps`, rounded up.

    In floating point, a product such as 1.1 × 50 is slightly above 55 and must not round up to one more step.
    """
    return math.ceil(round(ratio * steps, 9))


def require_steps_fit(training: TrainingConfig, end: int) -> int:
    """The step at which training ends, if the last stage ends at `end`.

    Raises:
        ConfigError: `max_steps` is beyond the last stage, or the warm-up is as long as the training.
    """
    steps = training.max_steps or end
    if steps > end:
        raise ConfigError(
            f"max_steps {steps} is beyond the last stage, which ends at {end}; raise that stage's until_step"
        )
    require_schedule_fits(training, steps)
    return steps


def require_schedule_fits(training: TrainingConfig, steps: int) -> None:
    """Raise ConfigError if a run of `steps` steps would never reach the peak learning rate."""
    warmup = training.warmup(steps)
    if warmup >= steps:
        given = f"warmup_ratio {training.warmup_ratio}, {warmup} steps," if training.warmup_ratio else ""
        raise ConfigError(
            f"{given or f'warmup_steps {warmup}'} leaves no step of the {steps} to train at the full learning "
            "rate; lower it"
        )
    if training.schedule_options.kind == "warmup_stable_decay" and warmup + training.decay(steps) > steps:
        raise ConfigError(
            f"a warm-up of {warmup} steps and a decay over {training.decay(steps)} (schedule.decay_ratio) are more "
            f"than the {steps} to train; lower one of them"
        )


def accumulation_steps(training: TrainingConfig) -> int:
    """Micro-batches per process and optimizer step.

    Raises:
        ConfigError: `rows_per_step` is not a multiple of `micro_batch_size` times the number of processes.
    """
    at_once = training.micro_batch_size * process_count()
    if training.rows_per_step % at_once:
        raise ConfigError(
            f"training.rows_per_step {training.rows_per_step} is not a multiple of training.micro_batch_size "
            f"{training.micro_batch_size} × {process_count()} processes; choose a multiple of {at_once}"
        )
    return training.rows_per_step // at_once
