"""What all evaluation tasks have in common: their keys in a config, and what a measured model comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field

from posttrain.config.sections.generation import AnsweringConfig
from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.catalogue import AnyGrader
from posttrain.evaluate.statistics.estimate import Clusters
from posttrain.evaluate.statistics.scores import Scores

if TYPE_CHECKING:
    from posttrain.evaluate.models import Model


class SamplingChange(StrictModel):
    """What a task changes in how it is answered."""

    max_new_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of an answer, in tokens."""

    temperature: float | None = Field(default=None, ge=0)
    """0 always takes the most likely token; higher values give more varied answers."""

    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample from the most likely tokens that together have this probability."""

    top_k: int | None = Field(default=None, ge=0)
    """Sample from this many of the most likely tokens; 0 sets no limit."""

    stop: tuple[Annotated[str, Field(min_length=1)], ...] | None = None
    """Texts that end an answer, besides the model's own end token."""

    def applied_to(self, sampling: AnsweringConfig) -> AnsweringConfig:
        """The sampling options with the changes."""
        changes = {name: value for name, value in self.model_dump().items() if value is not None}
        return sampling.model_copy(update=changes)


@dataclass(frozen=True)
class Setting:
    """What the tasks of a config share.

    Attributes:
        folder: where answers, grades and results are kept.
        graders: graders with parameters of their own, by name.
        skip_unusable: leave out rows that cannot be read or asked, instead of stopping.
    """

    folder: Path
    sampling: AnsweringConfig
    graders: Mapping[str, AnyGrader]
    allow_code_execution: bool
    skip_unusable: bool


@dataclass(frozen=True)
class Measured:
    """What a model came to in a task.

    Attributes:
        scores: by measure, the most important one first.
        clusters: the cluster of each prompt, if prompts are grouped.
        facts: further numbers to show, such as the share of answers that were cut.
        samples: a few answers to be read, each with `id`, `prompt`, `gold`, `completion` and `reward`.
        lines: the file with a line for each answer, if there are answers.
        answers: how many answers were wanted, graded or not.
        comparable: models are compared only where this is equal, because their values have one unit.
    """

    scores: Mapping[str, Scores]
    answers: int
    clusters: Clusters | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()
    lines: Path | None = None
    comparable: str = ""


class Job(Protocol):
    """A task for one model: nothing is loaded or asked yet."""

    @property
    def is_done(self) -> bool:
        """Whether the model need not be asked: everything it said is kept."""
        ...

    @property
    def longest(self) -> int:
        """The largest number of tokens of a prompt and its answer together; 0 for a server."""
        ...

    def run(self) -> Measured:
        """Ask the model what has not been asked yet, and measure.

        Raises:
            ServerError, RunError: a server fails, or the disk is full.
        """
        ...


class LoadedTask(Protocol):
    """A task whose data have been read and checked."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int | None:
        """Number of prompts; None if it depends on the model."""
        ...

    def job(self, model: "Model") -> Job:
        """What `model` has to do for it.

        Raises:
            DataError: a row cannot be asked.
            ConfigError: the model cannot do it.
        """
        ...


class TaskConfig(StrictModel):
    """Keys that all tasks have."""

    prompts: int | None = Field(default=None, ge=1)
    """Ask only this many of the rows, chosen by their content; null asks all."""

    cluster: str | None = Field(default=None, min_length=1)
    """Column that names the group of a row, if rows of one group resemble each other (such as questions about one
    text); intervals and tests then count groups."""

    @property
    def measures(self) -> Sequence[str]:
        """The names of the measures, or patterns of them as in `fnmatch` where they depend on the data."""
        return ("*",)

    def load(self, name: str, setting: Setting) -> LoadedTask:
        """Read and check the data.

        Raises:
            ConfigError, DataError: they are wrong.
        """
        raise NotImplementedError
