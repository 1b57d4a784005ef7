"""The arguments for a TRL trainer that trains like a toolkit config, taking micro-batches in order."""

from pathlib import Path
from typing import Any

from posttrain.config.sections.training import TrainingConfig


def trl_arguments(training: TrainingConfig, folder: Path, max_steps: int) -> dict[str, Any]:
    """Arguments for float32 on a CPU, at a constant learning rate without warm-up, saving and evaluating nothing."""
    assert training.schedule == "constant" and training.warmup_steps == 0
    return {
        "output_dir": str(folder),
        "max_steps": max_steps,
        "per_device_train_batch_size": training.micro_batch_size,
        "gradient_accumulation_steps": training.rows_per_step // training.micro_batch_size,
        "seed": training.seed,
        "data_seed": training.seed,
        "use_cpu": True,
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": training.gradient_checkpointing,
        "train_sampling_strategy": "sequential",
        "remove_unused_columns": False,
        "optim": {"adamw": "adamw_torch_fused", "sgd": "sgd"}[training.optimizer],
        "learning_rate": training.learning_rate,
        "lr_scheduler_type": "constant",
        "adam_beta1": training.beta1,
        "adam_beta2": training.beta2,
        "adam_epsilon": training.epsilon,
        "weight_decay": training.weight_decay,
        "max_grad_norm": training.max_grad_norm,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_liger_kernel": False,
    }
