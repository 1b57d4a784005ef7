"""Config of `training.schedule`: how the learning rate falls after the warm-up."""

from typing import Literal

from pydantic import Field, model_validator

from posttrain.config.strict import StrictModel

ScheduleName = Literal[
    "constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt", "warmup_stable_decay"
]

_OPTIONS = {
    "decay_ratio": "warmup_stable_decay",
    "power": "polynomial",
    "cycles": "cosine_with_restarts",
    "timescale": "inverse_sqrt",
}
"""The kind of schedule that each option is for."""


class ScheduleConfig(StrictModel):
    """A schedule with options."""

    kind: ScheduleName
    """Name of the schedule."""

    decay_ratio: float | None = Field(default=None, gt=0, le=1)
    """Of `warmup_stable_decay`: the share of all steps, at the end, in which the learning rate falls; 0.1 by default,
    rounded up to whole steps."""

    power: float | None = Field(default=None, gt=0)
    """Of `polynomial`: 1 falls in a straight line, more falls faster at first; 2 by default."""

    cycles: int | None = Field(default=None, ge=1)
    """Of `cosine_with_restarts`: how often the learning rate falls from its peak; 2 by default."""

    timescale: int | None = Field(default=None, ge=1)
    """Of `inverse_sqrt`: in this many more steps the learning rate falls to 1/√2 of its peak; by default the warm-up
    steps, or 10000 without any."""

    @model_validator(mode="after")
    def _options_are_read(self) -> "ScheduleConfig":
        for option, kind in _OPTIONS.items():
            if getattr(self, option) is not None and kind != self.kind:
                raise ValueError(f"{option} is for kind: {kind}; leave it out")
        return self
