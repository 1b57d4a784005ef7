"""The training itself, once everything is built: what all trainers do from here on."""

from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from posttrain.errors import ModelError
from posttrain.runs.directory import RunDirectory
from posttrain.runs.lost_ranks import ranks_explained
from posttrain.runs.resume import ResumePoint


def run_training(
    trainer: Any, run: RunDirectory, point: ResumePoint, may_stop_after: Callable[[int], bool] = lambda step: True
) -> None:
    """Train from `point` to the end; Ctrl-C or SIGTERM end it earlier, with a checkpoint.

    Args:
        trainer: a transformers `Trainer` whose callbacks publish its checkpoints.
        may_stop_after: whether a run can be resumed after so many steps.

    Raises:
        RunInterrupted: it was ended early.
        RunError: another process of the run ended.
        ModelError: the checkpoint holds more than tensors and numbers.
    """
    from posttrain.train.interruption import interruptible  # transformers, which comes after the backend

    # Here, and not only around the whole run: torchrun does not wait until an engine or a server is closed.
    with ranks_explained(run), interruptible(trainer, run, may_stop_after):
        trainer.accelerator.wait_for_everyone()
        _train(trainer, point.checkpoint)


def _train(trainer: Any, checkpoint: Path | None) -> None:
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except UnpicklingError as error:  # torch reads tensors and numbers alone
        if checkpoint is None:
            raise
        raise ModelError(
            f"{checkpoint} is not as this toolkit writes checkpoints: a file in it holds more than tensors and "
            "numbers, and was not read; resume from an older one without it, or start another run"
        ) from error
