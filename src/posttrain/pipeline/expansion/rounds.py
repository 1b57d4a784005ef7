"""Steps that are repeated, each round with the model that the one before has trained."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from posttrain.config.strict import StrictModel
from posttrain.config.values import OneLine
from posttrain.dataserver.config.names import refuse
from posttrain.pipeline.steps.base import StepConfig, name_fault
from posttrain.pipeline.steps.catalogue import AnyStep
from posttrain.pipeline.steps.training import TrainingStep

PREVIOUS = "previous"
"""In the steps of a round: the model that the round starts from."""
_ROUND = "{round}"


class RoundsConfig(StrictModel):
    """Repeat steps, such as sampling answers, keeping the good ones and training on them."""

    times: int = Field(ge=1)
    """How many rounds."""

    previous: OneLine
    """The step whose model the first round starts from, or `base`; each later round starts from the last model of the
    one before. Steps name it `previous`."""

    steps: dict[OneLine, AnyStep] = Field(min_length=1)
    """The steps of a round; elsewhere they are named `round1.NAME`, `round2.NAME` and so on. In `set`, the text
    `{round}` stands for the number of the round."""

    @field_validator("steps")
    @classmethod
    def _names_fit(cls, steps: dict[str, StepConfig]) -> dict[str, StepConfig]:
        refuse(fault for name in steps if (fault := name_fault(name)) is not None)
        return steps


def with_rounds(steps: Mapping[str, StepConfig], rounds: RoundsConfig) -> dict[str, StepConfig]:
    """The steps with those of all rounds.

    Raises:
        ValueError: a round trains no model.
    """
    trained = [name for name, step in rounds.steps.items() if isinstance(step, TrainingStep)]
    if not trained:
        raise ValueError("rounds.steps: no step trains a model, so all rounds would be the same")
    found, previous = dict(steps), rounds.previous
    for number in range(1, rounds.times + 1):
        names = {name: f"round{number}.{name}" for name in rounds.steps} | {PREVIOUS: previous}
        for name, step in rounds.steps.items():
            found[names[name]] = _numbered(step.renamed(names), number)
        previous = names[trained[-1]]
    return found


def _numbered(step: StepConfig, number: int) -> StepConfig:
    settings: Mapping[str, Any] | None = getattr(step, "set", None)
    if not settings:
        return step
    return step.model_copy(update={"set": {key: _with_number(value, number) for key, value in settings.items()}})


def _with_number(value: Any, number: int) -> Any:
    """The value with the number in the place of `{round}`; a number, where that is all of it."""
    if value == _ROUND:
        return number
    return value.replace(_ROUND, str(number)) if isinstance(value, str) else value
