"""Config section `training`: optimizer, learning-rate schedule, and the shape of a step."""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from posttrain.base.processes import process_count
from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.config.sections.optim.optimizers import (
    AnyOptimizer,
    OwnOptimizer,
    is_schedule_free,
    require_keys_are_read,
)
from posttrain.config.sections.optim.schedules import ScheduleConfig, ScheduleName
from posttrain.config.strict import StrictModel
from posttrain.errors import ConfigError

# The rows of a step are listed one by one, also to estimate the step's cost.
_MOST_ROWS = 2**20
_WITH_LOWEST = ("cosine", "polynomial", "warmup_stable_decay")
_DECAY_RATIO = 0.1


class EMAConfig(StrictModel):
    """An exponential moving average of the trained weights."""

    decay: float = Field(default=0.999, gt=0, lt=1)
    """Share of the average that stays at each step: it spans about 1 / (1 − decay) steps."""

    export: Literal["ema", "live"] = "ema"
    """Which weights are evaluated and exported: the average, or those that are trained, with the average only kept in
    the checkpoints."""


class ProfileConfig(StrictModel):
    """Which optimizer steps torch's profiler records."""

    first_step: int = Field(default=3, ge=1)
    """First step to record, counted from 1; the first two are slower than the rest."""

    steps: int = Field(default=2, ge=1, le=100)
    """How many steps to record."""

    @property
    def last_step(self) -> int:
        """The last step to record."""
        return self.first_step + self.steps - 1

    @property
    def file_name(self) -> str:
        """The trace's file in the run directory."""
        return f"profile-steps-{self.first_step}-{self.last_step}.json.gz"


class TrainingConfig(StrictModel):
    """One optimizer step trains on `rows_per_step` rows, however many devices share the work."""

    rows_per_step: int = Field(default=16, ge=1)
    """Rows per optimizer step, across all devices."""

    micro_batch_size: int = Field(default=4, ge=1)
    """Rows that go through the model at once on one device; affects memory and speed, not the training result."""

    micro_batch_tokens: Annotated[int, Field(ge=1)] | None = None
    """Or: tokens that go through the model at once, with padding: as many rows as fit, and a longer row alone.
    Validation and a cached reference still take `micro_batch_size` rows. None by default."""

    batching: Literal["auto", "padding_free", "by_length"] = "auto"
    """How the rows of a micro-batch go through the model (`backend: hf`): `by_length`, rows of similar length together,
    padded to the longest; `padding_free`, as one sequence without padding, each attending only to itself, with a shared
    prompt computed once. `auto` is padding_free on a CPU if the model's layers allow that, else by_length."""

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

    optimizer: AnyOptimizer = "adamw"
    """A name, or a section with `class` and `arguments`. From torch: `adamw`, `nadam`, `radam`, `adafactor`, `sgd`, and
    `muon` for the matrices of the layers, with `adamw` for all other weights. From bitsandbytes, on CUDA: `adamw_8bit`,
    `paged_adamw`, `paged_adamw_8bit`, `lion_8bit`. From the package schedulefree: `schedule_free_adamw`,
    `schedule_free_radam`, `schedule_free_sgd`."""

    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay rate for the mean of the gradient, of optimizers with Adam or Lion in their name and of Muon's AdamW."""

    beta2: float = Field(default=0.999, ge=0, lt=1)
    """Decay rate for the mean of the squared gradient, of the same optimizers."""

    epsilon: float = Field(default=1e-8, gt=0)
    """Epsilon, of the same optimizers but Lion."""

    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Momentum of `sgd` (by default 0), `muon` (0.95) and `schedule_free_sgd` (0.9)."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""

    lora_plus_ratio: Annotated[float, Field(ge=1)] | None = None
    """How many times higher the learning rate of LoRA's matrices B is than that of the others (LoRA+, arXiv:2402.12354,
    which proposes 16, with a lower `learning_rate`); by default they have the same."""

    max_grad_norm: float = Field(default=1.0, ge=0)
    """Clip the gradient to this norm; 0 disables clipping."""

    ema: EMAConfig | None = None
    """An average of the trained weights to evaluate and export; none by default."""

    router_loss: Annotated[float, Field(ge=0)] | None = None
    """Factor of the load-balancing loss of a model with experts, which is added to the loss; by default that of the
    model's config (`router_aux_loss_coef`), as in TRL, and 0 leaves it out. It is computed over the tokens that go
    through the model together, so it depends on the size of micro-batches (`backend: hf`)."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, but about a third slower."""

    offload_activations: bool = False
    """Keep activations in the machine's memory until the backward pass (CUDA, `backend: hf`): slower, as they are
    copied there and back. With `gradient_checkpointing` they are only the inputs of the layers."""

    offload_embeddings: bool = False
    """Keep the input embedding in the machine's memory and look tokens up there (CUDA, `backend: hf`); not for models
    whose head is the same matrix, nor where it is trained."""

    compile: bool | Literal["auto"] = "auto"
    """Train with torch.compile (`backend: hf`): saves a third of the time on a CPU, after compiling for half a minute,
    or for a few seconds if it was compiled before. `auto` uses it on a CPU with a C++ compiler if the run is long
    enough."""

    liger_kernel: bool = False
    """Use Liger's Triton kernels for the model's norms, rotary embedding and activation (CUDA, `backend: hf`, and `pip
    install liger-kernel`); they round differently."""

    profile: ProfileConfig | None = None
    """Record some steps with torch's profiler, in a trace file in the run directory; none by default."""

    @model_validator(mode="after")
    def _step_divides(self) -> "TrainingConfig":
        if self.rows_per_step > _MOST_ROWS:
            raise ValueError(f"rows_per_step {self.rows_per_step} is more than one step can have; at most {_MOST_ROWS}")
        if self.micro_batch_tokens is None and self.rows_per_step % self.micro_batch_size:
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

    @model_validator(mode="after")
    def _optimizer_reads_its_keys(self) -> "TrainingConfig":
        fields = type(self).model_fields
        names = ("beta1", "beta2", "epsilon", "momentum", "weight_decay")
        require_keys_are_read(self.optimizer, {name: getattr(self, name) != fields[name].default for name in names})
        if is_schedule_free(self.optimizer) and self.schedule_options.kind != "constant":
            raise ValueError(
                f"optimizer: {self.optimizer} averages the weights instead of lowering the learning rate; set "
                "schedule: constant"
            )
        if is_schedule_free(self.optimizer) and self.ema is not None:
            raise ValueError(f"ema: optimizer: {self.optimizer} averages the weights itself; leave ema out")
        if self.optimizer in ("schedule_free_adamw", "schedule_free_radam") and self.beta1 == 0:
            raise ValueError(f"beta1: optimizer: {self.optimizer} needs more than 0")
        return self

    @model_validator(mode="after")
    def _compiled_layers_keep_activations(self) -> "TrainingConfig":
        if self.offload_activations and self.compile is True:
            raise ValueError("offload_activations: compiled layers need activations as they are; set compile: auto")
        return self

    @property
    def exports_average(self) -> bool:
        """Whether other weights are evaluated and exported than are trained; unknown of one's own optimizer."""
        return is_schedule_free(self.optimizer) or (self.ema is not None and self.ema.export == "ema")

    @property
    def padding_free(self) -> bool | None:
        """Whether to train without padding; None to decide by the model."""
        return None if self.batching == "auto" else self.batching == "padding_free"

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


def require_training_fits(training: TrainingConfig, lora: LoraConfig | None, model: ModelConfig | None) -> None:
    """Raise ValueError if the training section does not suit the adapter; `model` is None if itself invalid."""
    if training.lora_plus_ratio is not None and lora is None and model is not None and model.adapter is None:
        raise ValueError("lora_plus_ratio is for adapters, but lora: null trains all weights; leave it out")
    if lora is None or lora.init is None:
        return
    key, decay = "weight_decay", training.weight_decay
    if isinstance(training.optimizer, OwnOptimizer):  # whose own default shows when it is tried before training
        key, decay = f"optimizer.arguments.{key}", training.optimizer.arguments.get(key, 0)
    if decay != 0:
        raise ValueError(f"{key}: decay would shrink the weights that lora.init: {lora.init} starts from; set it to 0")


def require_schedule_fits(training: TrainingConfig, steps: int) -> None:
    """Raise ConfigError if a run of `steps` steps would never reach the peak learning rate or a step to profile."""
    warmup = training.warmup(steps)
    if warmup >= steps:
        given = f"warmup_ratio {training.warmup_ratio}, {warmup} steps," if training.warmup_ratio else ""
        raise ConfigError(
            f"{given or f'warmup_steps {warmup}'} leaves no step of the {steps} to train at the full learning "
            "rate; lower it"
        )
    if training.profile is not None and training.profile.last_step > steps:
        raise ConfigError(
            f"profile: step {training.profile.last_step} is beyond the last step {steps}; lower first_step or steps"
        )
    if training.schedule_options.kind == "warmup_stable_decay" and warmup + training.decay(steps) > steps:
        raise ConfigError(
            f"a warm-up of {warmup} steps and a decay over {training.decay(steps)} (schedule.decay_ratio) are more "
            f"than the {steps} to train; lower one of them"
        )


def accumulation_steps(training: TrainingConfig) -> int:
    """Micro-batches per process and optimizer step; 1 if their number depends on the rows.

    Raises:
        ConfigError: `rows_per_step` is not a multiple of `micro_batch_size` times the number of processes.
    """
    if training.micro_batch_tokens is not None:
        if training.rows_per_step % process_count():
            raise ConfigError(
                f"training.rows_per_step {training.rows_per_step} is not a multiple of the {process_count()} "
                "processes; choose one that is"
            )
        return 1
    at_once = training.micro_batch_size * process_count()
    if training.rows_per_step % at_once:
        raise ConfigError(
            f"training.rows_per_step {training.rows_per_step} is not a multiple of training.micro_batch_size "
            f"{training.micro_batch_size} × {process_count()} processes; choose a multiple of {at_once}"
        )
    return training.rows_per_step // at_once
