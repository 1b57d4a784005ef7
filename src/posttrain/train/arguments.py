"""TrainingArguments from our config: every field that changes a training is set here, for every backend.

unsloth changes TRL's defaults (seed, learning rate, optimizer, warm-up and more), so nothing may be left to them.
"""

import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import torch

from posttrain.base.processes import process_count
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.config.sections.run import RunConfig
    from posttrain.config.sections.training import TrainingConfig
    from posttrain.runs.directory import RunDirectory


class Evaluations(Protocol):
    """When to evaluate: every so many optimizer steps, and before the first one or not."""

    @property
    def every(self) -> int: ...

    @property
    def at_start(self) -> bool: ...


_OPTIMIZERS = {"adamw": "adamw_torch_fused", "adamw_8bit": "adamw_8bit", "sgd": "sgd"}


def accumulation_steps(training: "TrainingConfig") -> int:
    """Micro-batches of one process in one optimizer step.

    Raises:
        ConfigError: the step does not divide into equal micro-batches over the processes.
    """
    at_once = training.micro_batch_size * process_count()
    if training.rows_per_step % at_once:
        raise ConfigError(
            f"training.rows_per_step {training.rows_per_step} is not a multiple of micro_batch_size "
            f"{training.micro_batch_size} × {process_count()} processes; choose a multiple of {at_once}"
        )
    return training.rows_per_step // at_once


def require_kernels(training: "TrainingConfig", backend: str) -> None:
    """Refuse what this machine or backend has no kernels for, before a model is loaded; `backend` is hf or unsloth.

    Raises:
        ConfigError: 8-bit AdamW or Liger without a CUDA device, Liger or `compile` with unsloth, or Liger is not
            installed.
    """
    wanted = {"optimizer: adamw_8bit": training.optimizer == "adamw_8bit", "liger_kernel": training.liger_kernel}
    for key, is_wanted in wanted.items():
        if is_wanted and not torch.cuda.is_available():
            instead = "adamw" if key.startswith("optimizer") else "false"
            raise ConfigError(f"training.{key} needs a CUDA device; set it to {instead}")
    if training.liger_kernel and backend == "unsloth":
        raise ConfigError("training.liger_kernel: unsloth has kernels of its own; set it to false, or backend: hf")
    if training.compile is True and backend == "unsloth":
        raise ConfigError("training.compile: unsloth compiles what it wants to; set it to auto, or backend: hf")
    if training.liger_kernel and find_spec("liger_kernel") is None:
        raise ConfigError("training.liger_kernel: not installed here: pip install liger-kernel, or set it to false")


def trainer_arguments(
    training: "TrainingConfig",
    run: "RunConfig",
    directory: "RunDirectory",
    *,
    max_steps: int,
    compute_dtype: torch.dtype,
    validation: "Evaluations | None",
    first_step: int,
) -> dict[str, Any]:
    """Keyword arguments for any of TRL's configs."""
    _name_cpu_ranks()
    return {
        **_step(training, max_steps, compute_dtype),
        **_optimizer(training),
        **_bookkeeping(run, directory),
        "eval_strategy": "steps" if validation else "no",
        "eval_steps": validation.every if validation else None,
        "eval_on_start": validation is not None and validation.at_start and first_step == 0,
    }


@cache
def _name_cpu_ranks() -> None:
    """Tell torch that `cpu:0` is the CPU.

    Where several processes train on a CPU, accelerate calls their device so, and transformers loads the optimizer's
    state to that device when it resumes; torch.load would know no place of that name.
    """
    torch.serialization.register_package(
        11,  # right after torch's own place for `cpu`
        lambda storage: None,
        lambda storage, location: storage if location.startswith("cpu:") else None,
    )


def _step(training: "TrainingConfig", max_steps: int, compute_dtype: torch.dtype) -> dict[str, Any]:
    return {
        "max_steps": max_steps,
        "per_device_train_batch_size": training.micro_batch_size,
        "per_device_eval_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": accumulation_steps(training),
        "seed": training.seed,
        "data_seed": training.seed,
        "full_determinism": False,
        "bf16": compute_dtype is torch.bfloat16,
        "fp16": compute_dtype is torch.float16,
        "use_cpu": not torch.cuda.is_available(),
        "gradient_checkpointing": training.gradient_checkpointing,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "train_sampling_strategy": "sequential",
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "dataloader_drop_last": False,
        "auto_find_batch_size": False,
        "eval_accumulation_steps": None,
        "torch_empty_cache_steps": None,
        "include_num_input_tokens_seen": "no",
        "remove_unused_columns": False,
        "average_tokens_across_devices": True,
        # Where it is wanted, the backend applies it: TRL's GRPO would take it for a wish for another loss.
        "use_liger_kernel": False,
        "torch_compile": False,
        "ddp_find_unused_parameters": False,
    }


def schedule_arguments(training: "TrainingConfig") -> tuple[str, dict[str, Any]]:
    """The scheduler's name in transformers, and its own keywords."""
    if training.schedule == "constant" and training.warmup_steps:
        return "constant_with_warmup", {}  # "constant" passes warmup_steps over without a word
    if training.min_learning_rate_ratio:
        return "cosine_with_min_lr", {"min_lr_rate": training.min_learning_rate_ratio}
    return training.schedule, {}


def _optimizer(training: "TrainingConfig") -> dict[str, Any]:
    schedule, keywords = schedule_arguments(training)
    return {
        "optim": _OPTIMIZERS[training.optimizer],
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": schedule,
        "lr_scheduler_kwargs": keywords,
        "warmup_steps": training.warmup_steps,
        "adam_beta1": training.beta1,
        "adam_beta2": training.beta2,
        "adam_epsilon": training.epsilon,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "neftune_noise_alpha": None,
        "label_smoothing_factor": 0.0,
    }


def _bookkeeping(run: "RunConfig", directory: "RunDirectory") -> dict[str, Any]:
    if "tensorboard" in run.trackers:
        # The only way to tell it; otherwise it writes into the trainer's private folder, which does not last.
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(directory.path / "tensorboard")
    return {
        "output_dir": str(directory.trainer_private),
        "run_name": directory.path.name,
        "report_to": list(run.trackers) or "none",
        "push_to_hub": False,
        # The windowed loss that the trainer logs is wrong after a resume unless the window is one step, and its
        # filter would hide a NaN.
        "logging_strategy": "steps",
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "disable_tqdm": True,
        "save_strategy": "steps",
        "save_steps": run.save_every,
        "save_total_limit": None,
        "load_best_model_at_end": False,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": False,
        "restore_callback_states_from_checkpoint": True,
        "skip_memory_metrics": True,
    }
