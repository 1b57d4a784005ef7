"""Base class of graders: a config section that scores a completion.

The parameters of a grader are the fields of its class, so that its code, its section in a config file and its
page in the catalogue cannot drift apart. Graders run in worker processes that are killed at a deadline; they
may take their time, raise, or loop, and only the completion in question goes without a score.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, ClassVar, Literal, NamedTuple

from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags


class Score(NamedTuple):
    """A score in [0, 1], and a few words on why, for the person who looks at the completion later."""

    value: float
    detail: str = ""


def checked_score(value: object) -> Score:
    """What a grader answered, as a score; ValueError unless it is a number in [0, 1] (true and NaN are none)."""
    score = value if isinstance(value, Score) else Score(value)  # type: ignore[arg-type]
    number = score.value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0.0 <= number <= 1.0:
        raise ValueError(f"the grader answered {str(number)[:60]!r}, which is not a number from 0 to 1")
    return Score(float(number), str(score.detail))


class Abstain(Exception):  # not an error: the grader has nothing to say
    """Raised by a grader that cannot judge a completion. No reward is given then, which is not a reward of 0."""


@dataclass(frozen=True)
class Example:
    """A line of a grader's table: what it is given, and what it answers. Each is a test and a piece of the docs."""

    completion: str
    score: float | None
    """None: it abstains."""
    gold: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the grader that differ from the defaults."""
    record: Mapping[str, Any] = field(default_factory=dict)
    tags: ReasoningTags | None = None
    completion_tokens: int | None = None
    truncated: bool | None = None
    prompt: str = ""
    note: str = ""
    """What the line shows."""


class Grader(StrictModel):
    """Base of all graders. A subclass has `type: Literal["its_name"] = "its_name"`, its parameters, and `score`."""

    needs_gold: ClassVar[bool] = False
    """Whether every row must have a gold answer."""

    is_correctness: ClassVar[bool] = False
    """Whether the score says that an answer is right, so that nothing but a right answer may earn any of it."""

    needs_tags: ClassVar[bool] = False
    """Whether the data set must name its reasoning tags."""

    needs_code_execution: ClassVar[bool] = False
    """Whether it runs code that a model wrote."""

    is_users_code: ClassVar[bool] = False
    """Whether it runs what the user wrote, which gets processes of its own: it could change any other grader there."""

    libraries: ClassVar[tuple[str, ...]] = ()
    """Packages whose version decides the scores."""

    preload: ClassVar[tuple[str, ...]] = ()
    """Modules that take long to import; the grading processes are forked from one that has them."""

    examples: ClassVar[tuple[Example, ...]] = ()
    """The table in the catalogue."""

    @property
    def type_name(self) -> str:
        """The name that `type` has in a config."""
        return self.model_dump(include={"type"})["type"]

    def load(self) -> None:
        """Load users' code and whatever else takes time, once per process.

        Raises:
            ConfigError: it cannot be loaded.
        """

    def notice(self) -> str:
        """What a person should know before anything is graded; nothing unless it is out of the ordinary.

        Raises:
            ConfigError: what the grader needs is not on this machine.
        """
        return ""

    def identity(self) -> str:
        """What decides the scores besides the parameters: versions of libraries, the hash of a user's code."""
        return " ".join(f"{package}=={version(package)}" for package in self.libraries)

    def check_row(self, item: GradeInput) -> None:
        """Check what the grader wants of a row, once at the start; `item` has a record and a gold, and no completion.

        Raises:
            DataError: the row cannot be graded, whatever the completion: a gold answer that is no number, say.
        """

    def seconds_at_most(self, item: GradeInput) -> float:
        """How long one completion of a row may take by the grader's own limits; `item` as in `check_row`."""
        return 0.0

    def score(self, item: GradeInput) -> Score | float:
        """Score one completion.

        Raises:
            Abstain: this completion cannot be judged.
        """
        raise NotImplementedError


Part = Literal["answer", "completion", "reasoning"]


class TextGrader(Grader):
    """Base of the graders that look at one part of the completion; without that part the score is 0."""

    part: Part = "answer"
    """What is looked at: the answer (what follows the reasoning), the reasoning, or the whole completion."""

    def score(self, item: GradeInput) -> Score | float:
        """Score the part of the completion that is looked at."""
        text = getattr(item, self.part)
        if text is None:
            return Score(0.0, "the reasoning is not closed, so there is no answer" if item.tags else f"no {self.part}")
        return self.score_text(text, item)

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """Score the text; `Abstain` as in `score`."""
        raise NotImplementedError
