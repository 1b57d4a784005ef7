"""The learning rate as a function of the step, by the scheduler that the trainer uses."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback, get_scheduler

from posttrain.config.sections.training import TrainingConfig
from posttrain.train.arguments import schedule_arguments


class ScheduleCallback(TrainerCallback):
    """Begins a resumed run with the schedule that it has now: a checkpoint brings the peak and the learning rate of the
    one that it was written under, of which the trainer would take the peak for good and the rate for one step."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        scheduler, groups = kwargs["lr_scheduler"], kwargs["optimizer"].param_groups
        rates = [args.learning_rate * factor(scheduler.last_epoch) for factor in scheduler.lr_lambdas]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        peaks = [args.learning_rate] * len(rates)
        scheduler.load_state_dict({**scheduler.state_dict(), "base_lrs": peaks, "_last_lr": rates})


def learning_rate_at(training: TrainingConfig, max_steps: int, step: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0, in a run of `max_steps`."""
    return _schedule(training, max_steps)(step)


def schedule_change(
    old: TrainingConfig, old_max_steps: int, new: TrainingConfig, new_max_steps: int, step: int
) -> str | None:
    """One sentence on what a resumed run's new schedule does at `step`.

    None where the steps before it had the learning rates that the new schedule gives them too, so that the run
    is the same as one that had the new schedule from the start.
    """
    before, after = _schedule(old, old_max_steps), _schedule(new, new_max_steps)
    if all(before(earlier) == after(earlier) for earlier in range(step)):
        return None
    longer = old_max_steps != new_max_steps
    return (
        f"the schedule {f'now spans {new_max_steps} steps instead of {old_max_steps}' if longer else 'changed'}: "
        f"at step {step} the learning rate goes from {before(step):.3g} to {after(step):.3g}, so the run differs "
        f"from one that had {new_max_steps if longer else 'it'} from the start"
    )


def _schedule(training: TrainingConfig, max_steps: int) -> Callable[[int], float]:
    name, keywords = schedule_arguments(training)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=training.learning_rate)
    scheduler: Any = get_scheduler(
        name,
        optimizer,
        num_warmup_steps=training.warmup_steps,
        num_training_steps=max_steps,
        scheduler_specific_kwargs=keywords,
    )
    factor = scheduler.lr_lambdas[0]
    return lambda step: training.learning_rate * factor(step)
