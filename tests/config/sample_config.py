"""A sample config with everything a real one has: sections, lists, mappings, unions, paths, validators."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from posttrain.config.strict import ConfigPath, StrictModel


class Training(StrictModel):
    """The shape of a step."""

    learning_rate: float = Field(default=2e-4, gt=0)
    """Peak learning rate."""

    seed: int = Field(default=0, ge=0)
    """Seed of everything."""

    rows: int = Field(default=16, ge=1)
    """Rows in a step."""

    micro: int = Field(default=4, ge=1)
    """Rows at once."""

    exact: bool = False
    """Repeat bit for bit."""

    @model_validator(mode="after")
    def _rows_divide(self) -> "Training":
        if self.rows % self.micro:
            raise ValueError(f"micro {self.micro} does not divide rows {self.rows}")
        return self


class Stage(StrictModel):
    """One stage."""

    name: str = Field(min_length=1)
    """Shown in the log."""

    until_step: int = Field(ge=1)
    """Where it ends."""

    mix: dict[str, float] = Field(default_factory=dict)
    """Weights."""


class MathGrader(StrictModel):
    """Compares numbers."""

    type: Literal["math"]
    """Which grader."""

    tolerance: float = Field(default=0.0, ge=0)
    """How far off is still right."""


class LengthGrader(StrictModel):
    """Counts characters | words."""

    type: Literal["length"]
    """Which grader."""

    most: int
    """The limit."""

    math: MathGrader | None = None
    """A key named like the other grader's tag."""


Grader = Annotated[MathGrader | LengthGrader, Field(discriminator="type")]


class Server(StrictModel):
    """Another machine."""

    port: int = Field(default=80, ge=1)
    """Where it listens."""

    api_key: str | None = Field(default=None, max_length=8)
    """What it wants to see."""


class Sample(StrictModel):
    """All of it."""

    name: str
    """What it is called."""

    training: Training = Training()
    """How it learns."""

    stages: tuple[Stage, ...] = ()
    """When it learns what."""

    graders: tuple[Grader, ...] = ()
    """Who judges."""

    data: ConfigPath | None = None
    """A file."""

    runs: ConfigPath = ConfigPath("runs")
    """A folder."""

    targets: Literal["auto", "all"] | tuple[str, ...] = "auto"
    """Names, or a rule for them."""

    server: Server = Server()
    """Who is asked."""
