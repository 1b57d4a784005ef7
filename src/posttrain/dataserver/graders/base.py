"""Base class of graders: a config section that scores a completion.

A grader's parameters are the fields of its class, so that its code, its section in a config file and its entry in
the catalogue cannot drift apart. Graders (except `RemoteGrader`) run in worker processes that are killed at a
deadline: if a grader is slow, raises or loops for ever, only the completion at hand gets no score.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar, Literal, NamedTuple

from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags


class Score(NamedTuple):
    """A score in [0, 1] and a short reason for it, for whoever reviews the completion later."""

    value: float
    detail: str = ""


def checked_score(value: object) -> Score:
    """Convert what a grader returned to a score; ValueError unless it is a number in [0, 1], and not a bool or NaN."""
    score = value if isinstance(value, Score) else Score(value)  # type: ignore[arg-type]
    number = score.value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0.0 <= number <= 1.0:
        raise ValueError(f"the grader returned {str(number)[:60]!r}, not a number from 0 to 1")
    return Score(float(number), str(score.detail))


class Abstain(Exception):  # not an error: the grader has nothing to say
    """Raised by a grader that cannot judge a completion, which then gets no reward rather than a reward of 0."""


@dataclass(frozen=True)
class Example:
    """A row of a grader's example table: the input and the expected score. It is both a test and documentation."""

    completion: str
    score: float | None
    """None: the grader abstains."""
    gold: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the grader that differ from the defaults."""
    record: Mapping[str, Any] = field(default_factory=dict)
    tags: ReasoningTags | None = None
    completion_tokens: int | None = None
    truncated: bool | None = None
    prompt: str = ""
    note: str = ""
    """What the example shows."""


class Grader(StrictModel):
    """Base of all graders. A subclass has `type: Literal["its_name"] = "its_name"`, its parameters, and `score`."""

    needs_gold: ClassVar[bool] = False
    """Whether every row must have a gold answer."""

    is_correctness: ClassVar[bool] = False
    """Whether the score measures correctness, so that only a right answer may earn any of it."""

    needs_tags: ClassVar[bool] = False
    """Whether the data set must name its reasoning tags."""

    needs_code_execution: ClassVar[bool] = False
    """Whether it runs code written by a model."""

    is_users_code: ClassVar[bool] = False
    """Whether it runs the user's code, which gets its own processes because it could change any other grader there."""

    libraries: ClassVar[tuple[str, ...]] = ()
    """Packages whose versions affect the scores."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that are slow to import; the grading processes are forked from one that has them."""

    examples: ClassVar[tuple[Example, ...]] = ()
    """The table in the catalogue."""

    @property
    def type_name(self) -> str:
        """The value of `type` in a config."""
        return self.model_dump(include={"type"})["type"]

    def load(self) -> None:
        """Load the user's code and anything else that takes time, once per process.

        Raises:
            ConfigError: it cannot be loaded.
        """

    def notice(self) -> str:
        """A message to the user before anything is graded; empty unless there is something unusual to say.

        Raises:
            ConfigError: something that the grader needs is missing on this machine.
        """
        return ""

    def identity(self) -> str:
        """What determines the scores besides the parameters: library versions, the hash of the user's code."""
        return " ".join(f"{package}=={version(package)}" for package in self.libraries)

    def check_row(self, item: GradeInput) -> None:
        """Check a row once, at the start; `item` has a record and a gold but no completion.

        Raises:
            DataError: the row cannot be graded whatever the completion, e.g. because its gold answer is not a number.
        """

    def seconds_at_most(self, item: GradeInput) -> float:
        """How many seconds one completion of a row may take under the grader's own limits; `item` as in `check_row`."""
        return 0.0

    def score(self, item: GradeInput) -> Score | float:
        """Score one completion.

        Raises:
            Abstain: this completion cannot be judged.
        """
        raise NotImplementedError


Part = Literal["answer", "completion", "reasoning"]


class TextGrader(Grader):
    """Base of the graders that score one part of the completion; without that part the score is 0."""

    part: Part = "answer"
    """What to score: the answer (what follows the reasoning), the reasoning, or the whole completion."""

    def score(self, item: GradeInput) -> Score | float:
        """Score `part` of the completion."""
        text = getattr(item, self.part)
        if text is None:
            return Score(0.0, "the reasoning is not closed, so there is no answer" if item.tags else f"no {self.part}")
        return self.score_text(text, item)

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """Score the text; `Abstain` as in `score`."""
        raise NotImplementedError
