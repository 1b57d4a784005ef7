"""Which graders judge a data set, with which weights, and what a missing score means."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.text.extraction import Extract

OnMissingScore = Literal["abstain", "renormalise", "zero"]
Weight = Annotated[float, Field(ge=0, le=1_000_000)]


def _each_once(gates: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({name for name in gates if gates.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} would count twice; name each gate once")
    return gates


Gates = Annotated[tuple[str, ...], AfterValidator(_each_once)]


class GoldConfig(StrictModel):
    """Where the right answer of a row stands."""

    column: str = Field(default="answer", min_length=1)
    """The column; `a.b` is key b of the object in column a."""

    extract: Extract = "all"
    """Which part of it, where it is text: all, boxed, last_number, `{after: "####"}` or `{regex: "..."}`."""


def check_weights(weights: dict[str, float] | None) -> dict[str, float] | None:
    """The weights as they are; ValueError unless one is above 0."""
    if weights is not None and not any(weights.values()):
        raise ValueError("no grader has a weight above 0, so every reward would be undefined; raise one of them")
    return weights


class GradingOverride(StrictModel):
    """What a stage changes about how a data set is graded."""

    graders: dict[str, Weight] | None = None
    """Graders and their weights in this stage, instead of the data set's own."""

    gates: Gates | None = None
    """Gates in this stage, instead of the data set's own."""

    @field_validator("graders")
    @classmethod
    def _something_counts(cls, weights: dict[str, float] | None) -> dict[str, float] | None:
        return check_weights(weights)
