"""What a run says of itself at its start."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from posttrain.base.console import console
from posttrain.base.differences import differences
from posttrain.config.sections.training import TrainingConfig
from posttrain.runs.directory import RunDirectory
from posttrain.runs.resume import ResumePoint
from posttrain.train.learning_rate import schedule_change


@dataclass(frozen=True)
class Schedule:
    """A run's config, and what decides its learning rates."""

    config: BaseModel
    training: TrainingConfig
    max_steps: int


def announce_start(run: RunDirectory, point: ResumePoint, model: Any) -> None:
    """Say what is trained, and where it begins or goes on."""
    console.print(trained_share(model))
    if point.checkpoint is None:
        anew = "; no checkpoint had been written, so the run begins anew" * point.begins_anew
        console.print(f"run directory: {run.path}{anew}")
    else:
        console.print(f"resuming {run.path} from step {point.counters.step}")
    for damaged in point.passed_over:
        console.print(f"  {damaged.path.name} is damaged and kept as damaged-{damaged.path.name}: {damaged.reason}")


def announce_changes(before: Schedule, now: Schedule, step: int) -> None:
    """Say what about a run that is resumed after `step` is not as it was when it started."""
    for change in differences(before.config.model_dump(mode="json"), now.config.model_dump(mode="json")):
        console.print(f"  changed since the run started: {change}")
    change = schedule_change(before.training, before.max_steps, now.training, now.max_steps, step)
    if change:
        console.print(f"  {change}")


def trained_share(model: Any) -> str:
    """How many of the model's parameters are trained, as a line."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained, total = sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)
    return f"trained parameters: {trained:,} of {total:,} ({trained / total:.1%})"
