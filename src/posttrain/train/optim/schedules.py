"""The learning rate of each step, as a pure function of the config and the step."""

import math

from posttrain.config.sections.training import TrainingConfig


def learning_rate(training: TrainingConfig, max_steps: int, step: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0, in a run of `max_steps`.

    It rises linearly from 0 over the W steps of the warm-up, as step / W, and then is the peak times, with
    p = (step − W) / (max_steps − W) and r the ratio of the peak that it ends at:

        constant              1
        linear                1 − p
        cosine                r + (1 − r)·(1 + cos πp)/2
        cosine_with_restarts  (1 + cos(π·(cycles·p mod 1)))/2
        polynomial            r + (1 − r)·(1 − p)^power
        inverse_sqrt          1 / √((step − W + timescale) / timescale)
        warmup_stable_decay   1, then in the last D steps r + (1 − r)·(1 + cos(π·(step − max_steps + D)/D))/2

    `get_scheduler` of transformers 5.17 (transformers/optimization.py) gives the same, except that its
    warmup_stable_decay begins the warm-up at r instead of 0.
    """
    warmup = training.warmup(max_steps)
    factor = step / warmup if step < warmup else _after_warmup(training, max_steps, step - warmup)
    return training.learning_rate * factor


def _after_warmup(training: TrainingConfig, max_steps: int, done: int) -> float:
    """The share of the peak after `done` steps since the warm-up."""
    options, lowest = training.schedule_options, training.min_learning_rate_ratio
    warmup = training.warmup(max_steps)
    progress = done / max(1, max_steps - warmup)
    if options.kind == "constant":
        return 1.0
    if options.kind == "inverse_sqrt":
        timescale = options.timescale or warmup or 10_000
        return 1 / math.sqrt((done + timescale) / timescale)
    if options.kind == "warmup_stable_decay":
        decay = training.decay(max_steps)
        falling = 1 - max(0.0, (warmup + done - max_steps + decay) / decay)
    else:
        falling = 1 - progress
    if options.kind in ("linear", "polynomial"):
        falling = max(0.0, falling) ** (1 if options.kind == "linear" else options.power or 2)
    elif options.kind == "cosine_with_restarts":
        falling = _half_cosine((options.cycles or 2) * progress % 1) if progress < 1 else 0.0
    else:
        falling = _half_cosine(1 - falling)
    return max(0.0, lowest + (1 - lowest) * falling)


def _half_cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * progress)) / 2


def schedule_in_words(training: TrainingConfig, max_steps: int) -> str:
    """The number of steps and their learning rate, such as "60, learning rate 0.001 cosine after 6 warm-up steps"."""
    return (
        f"{max_steps}, learning rate {training.learning_rate:g} {training.schedule_options.kind} after "
        f"{training.warmup(max_steps)} warm-up steps"
    )


def schedule_change(
    old: TrainingConfig, old_max_steps: int, new: TrainingConfig, new_max_steps: int, step: int
) -> str | None:
    """One sentence on what a resumed run's new schedule changes at `step`.

    None if the new schedule gives the steps before it the same learning rates that they had, so that the run equals one
    that had the new schedule from the start.
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
