"""The learning rate as a function of the step, by the scheduler that the trainer uses."""

from typing import Any

import torch
from transformers import get_scheduler

from toolkit.core.config.training import TrainingConfig
from toolkit.core.training.arguments import schedule_arguments


def learning_rate_at(training: TrainingConfig, max_steps: int, step: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0, in a run of `max_steps`."""
    name, keywords = schedule_arguments(training)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=training.learning_rate)
    scheduler: Any = get_scheduler(
        name,
        optimizer,
        num_warmup_steps=training.warmup_steps,
        num_training_steps=max_steps,
        scheduler_specific_kwargs=keywords,
    )
    return training.learning_rate * scheduler.lr_lambdas[0](step)


def schedule_change(
    old: TrainingConfig, old_max_steps: int, new: TrainingConfig, new_max_steps: int, step: int
) -> str | None:
    """One sentence on what a resumed run's new schedule does at `step`; None where it does nothing."""
    before = learning_rate_at(old, old_max_steps, step)
    after = learning_rate_at(new, new_max_steps, step)
    if before == after and old_max_steps == new_max_steps:
        return None
    return (
        f"the schedule now spans {new_max_steps} steps instead of {old_max_steps}: at step {step} the learning rate "
        f"goes from {before:.3g} to {after:.3g}, so the run differs from one that had {new_max_steps} from the start"
    )
