"""The learning rate of an optimizer step, as a function of the step alone."""

import math

from posttrain.config.sections.training import TrainingConfig


def learning_rate(training: TrainingConfig, max_steps: int, step: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0, in a run of `max_steps`.

    It rises linearly from 0 over the warm-up. Then with p = (step − warm-up) / (max_steps − warm-up) it is the peak
    times 1 (constant), 1 − p (linear), or r + (1 − r)·(1 + cos πp)/2 (cosine, with r the ratio that it ends at):
    `get_scheduler` of transformers gives the same.
    """
    warmup = training.warmup_steps
    if step < warmup:
        return training.learning_rate * step / warmup
    progress = (step - warmup) / max(1, max_steps - warmup)
    factor = 1.0
    if training.schedule == "linear":
        factor = max(0.0, 1.0 - progress)
    elif training.schedule == "cosine":
        lowest = training.min_learning_rate_ratio
        factor = max(0.0, lowest + (1 - lowest) * (1 + math.cos(math.pi * progress)) / 2)
    return training.learning_rate * factor


def schedule_change(
    old: TrainingConfig, old_max_steps: int, new: TrainingConfig, new_max_steps: int, step: int
) -> str | None:
    """One sentence on what a resumed run's new schedule does at `step`.

    None where the steps before it had the learning rates that the new schedule gives them too, so that the run
    is the same as one that had the new schedule from the start.
    """
    if all(
        learning_rate(old, old_max_steps, earlier) == learning_rate(new, new_max_steps, earlier)
        for earlier in range(step)
    ):
        return None
    longer = old_max_steps != new_max_steps
    before, after = learning_rate(old, old_max_steps, step), learning_rate(new, new_max_steps, step)
    return (
        f"the schedule {f'now spans {new_max_steps} steps instead of {old_max_steps}' if longer else 'changed'}: "
        f"at step {step} the learning rate goes from {before:.3g} to {after:.3g}, so the run differs "
        f"from one that had {new_max_steps if longer else 'it'} from the start"
    )
