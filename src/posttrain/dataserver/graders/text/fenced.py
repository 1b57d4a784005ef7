"""Base classes of graders whose text may be in a Markdown fence, and of those that require strict JSON."""

import re
import sys
from typing import Any

from pydantic import Field

from posttrain.base.strict_json import parse_json
from posttrain.dataserver.graders.base import Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError

_OPENING = re.compile(r"```[\w+-]*[ \t\r]*")


def unfenced(text: str) -> str | None:
    """The text inside the fence if the text is one fenced block with nothing around it; else None."""
    first, newline, rest = text.strip().partition("\n")
    if not newline or not rest.endswith("```") or not _OPENING.fullmatch(first):
        return None
    return rest[:-3]


class FencedTextGrader(TextGrader):
    """Base of the graders that may accept fenced text, at a lower score."""

    fenced_score: float = Field(default=0.0, ge=0, le=1)
    """Factor on the score of a text that is one Markdown fence with nothing around it; 0 rejects fences."""

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """The score of the text inside the fence times `fenced_score`, or the score of an unfenced text."""
        inside = unfenced(text) if self.fenced_score else None
        if inside is None:
            return self.score_bare(text, item)
        bare = self.score_bare(inside, item)
        return Score(bare.value * self.fenced_score, bare.detail or "inside a fence")

    def score_bare(self, text: str, item: GradeInput) -> Score:
        """Score a text that has no fence around it; `Abstain` as in `score`."""
        raise NotImplementedError


def parse_strictly(text: str) -> Any:
    """Parse a text that is exactly one JSON value.

    Raises:
        DataError: the text is not one JSON value, has a duplicate key in an object, contains NaN, Infinity or a
            number beyond the range of a float, or is nested deeper than 100 levels.
    """
    value = parse_json(text.encode("utf-8", "surrogatepass"))
    if not _numbers_are_finite(value):
        raise DataError("a number is larger than any float, so programs would read it differently")
    return value


def _numbers_are_finite(value: Any) -> bool:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, int | float) and abs(value) > sys.float_info.max:
            return False
    return True


class JsonGrader(FencedTextGrader):
    """Base of the graders whose text must be JSON and nothing else; other text scores 0."""

    max_chars: int = Field(default=1_000_000, ge=1)
    """Longest text that is read, in characters; a longer one scores 0."""

    def score_bare(self, text: str, item: GradeInput) -> Score:
        """The score of the value if the text is JSON; else 0."""
        if len(text) > self.max_chars:
            return Score(0.0, f"longer than {self.max_chars} characters")
        try:
            value = parse_strictly(text)
        except DataError as error:
            return Score(0.0, str(error))
        return self.score_value(value, item)

    def score_value(self, value: Any, item: GradeInput) -> Score:
        """Score the parsed value; `Abstain` as in `score`."""
        raise NotImplementedError
