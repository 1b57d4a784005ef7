"""Grader `length_soft`: lower the score as the completion approaches its maximum length."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from posttrain.dataserver.graders.base import Abstain, Example, Grader, Score
from posttrain.dataserver.graders.text.completions import GradeInput

_DAPO = {"max_tokens": 20480, "buffer_tokens": 4096}


class LengthSoft(Grader):
    """1 up to `max_tokens` − `buffer_tokens`, then falling linearly to 0 at `max_tokens`.

    The soft overlong punishment of DAPO (arXiv 2503.14476, equation 13), which runs from 0 to −1, plus 1. The weight of
    this grader is the size of the punishment.
    """

    type: Literal["length_soft"] = "length_soft"

    max_tokens: int = Field(ge=1)
    """Length at which the score reaches 0, in tokens; L_max in the paper."""

    buffer_tokens: int = Field(ge=1)
    """Number of tokens over which the score falls; L_cache in the paper."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example("short", 1.0, completion_tokens=10, params=_DAPO),
        Example("just not too long", 1.0, completion_tokens=16384, params=_DAPO),
        Example("half way", 0.5, completion_tokens=18432, params=_DAPO),
        Example("at the end", 0.0, completion_tokens=20480, params=_DAPO),
        Example("beyond", 0.0, completion_tokens=30000, params=_DAPO),
        Example("?", None, params=_DAPO, note="the trainer did not report the length"),
    )

    @model_validator(mode="after")
    def _buffer_fits(self) -> "LengthSoft":
        if self.buffer_tokens > self.max_tokens:
            raise ValueError(f"buffer_tokens must be at most max_tokens, {self.max_tokens}, not {self.buffer_tokens}")
        return self

    def score(self, item: GradeInput) -> Score | float:
        """In [0, 1]."""
        if item.completion_tokens is None:
            raise Abstain("the trainer did not send the number of tokens")
        return min(1.0, max(0.0, (self.max_tokens - item.completion_tokens) / self.buffer_tokens))
