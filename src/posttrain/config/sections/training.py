"""Config section `training`: optimizer, learning-rate schedule, and the shape of a step."""

from typing import Literal

from pydantic import Field, model_validator

from posttrain.base.processes import process_count
from posttrain.config.strict import StrictModel
from posttrain.errors import ConfigError

# The rows of a step are listed one by one, also to estimate the step's cost.
_MOST_ROWS = 2**20


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

    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """How the learning rate falls after the warm-up; `constant` keeps it."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises from 0."""

    min_learning_rate_ratio: float = Field(default=0.0, ge=0, lt=1)
    """Final learning rate of a cosine schedule, as a share of the peak."""

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
        if self.min_learning_rate_ratio and self.schedule != "cosine":
            raise ValueError("min_learning_rate_ratio is for schedule: cosine; leave it out")
        return self


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
    if training.warmup_steps >= steps:
        raise ConfigError(
            f"warmup_steps {training.warmup_steps} leaves no step of the {steps} to train at the full learning "
            "rate; lower it"
        )
    return steps


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
