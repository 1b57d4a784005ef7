"""The training itself, once everything is built: what all trainers do from here on."""

from collections.abc import Callable
from typing import Any

from toolkit.core.runs.directory import RunDirectory
from toolkit.core.runs.resume import ResumePoint
from toolkit.core.training.interruption import interruptible


def run_training(
    trainer: Any, run: RunDirectory, point: ResumePoint, may_stop_after: Callable[[int], bool] = lambda step: True
) -> None:
    """Train from `point` to the end; Ctrl-C or SIGTERM end it earlier, with a checkpoint.

    Args:
        trainer: a transformers `Trainer` whose callbacks publish its checkpoints.
        may_stop_after: whether a run can be resumed after so many steps.

    Raises:
        RunInterrupted: it was ended early.
    """
    trainer.accelerator.wait_for_everyone()
    with interruptible(trainer, run, may_stop_after):
        trainer.train(resume_from_checkpoint=str(point.checkpoint) if point.checkpoint else None)
