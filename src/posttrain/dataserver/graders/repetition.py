"""Grader `repetition`: lower the score of a completion that repeats itself."""

import re
from collections.abc import Hashable, Iterable
from typing import ClassVar, Literal

from pydantic import Field

from posttrain.dataserver.graders.base import Example, Part, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput, plain

# Text without white space is cut into words, so that one endless word cannot hide a loop. The group is empty for signs.
_WORD = re.compile(r"(\w{1,20})|[^\w\s]{1,20}")


class Repetition(TextGrader):
    """1 minus the share of runs of `n` words that repeat earlier ones; 0 for a text without words.

    A word is a sequence of up to 20 letters and digits, or of up to 20 other signs; case and invisible characters are
    ignored, and all other signs count as the same, so that varying them does not hide a loop. With w words there are w
    − n + 1 runs, which overlap; the score is the number of different ones, divided by that. A text of fewer than `n`
    words repeats nothing.
    """

    type: Literal["repetition"] = "repetition"

    part: Part = "completion"
    """What to score: the whole completion, the reasoning, or the answer."""

    n: int = Field(default=4, ge=1, le=20)
    """Length of a run, in words."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example("The quick brown fox jumps over it", 1.0),
        Example("a b a b a b", 2 / 3, params={"n": 4}, note="runs abab, baba, abab: two of three are distinct"),
        Example("so so so so so", 0.25, params={"n": 2}, note="four runs, one distinct"),
        Example("so So SO so so", 0.25, params={"n": 2}),
        Example("ha" * 1000, 1 / 97, note="no white space: 100 words of 20 letters, all alike"),
        Example("so good .! so good ..! so good ...!", 0.375, params={"n": 2}, note="eight runs, three distinct"),
        Example("so good so g\u200bood so good", 0.4, params={"n": 2}, note="invisible characters change no word"),
        Example("Yes.", 1.0, note="too short to repeat anything"),
        Example("", 0.0),
        Example(" \n", 0.0),
    )

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """In [0, 1]."""
        words = _WORD.findall(plain(text).casefold())
        if not words:
            return Score(0.0, "no words")
        if len(words) < self.n:
            return 1.0
        numbers = runs = _numbered(words)
        for length in range(1, self.n):
            # A run is stored as the number of the run one word shorter and its last word, so that memory stays linear.
            runs = _numbered(zip(runs, numbers[length:], strict=False))
        different = max(runs) + 1
        return Score(different / len(runs), f"{different} of {len(runs)} runs are different")


def _numbered(items: Iterable[Hashable]) -> list[int]:
    """Number the items from 0 without gaps; equal items get equal numbers."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(item, len(numbers)) for item in items]
