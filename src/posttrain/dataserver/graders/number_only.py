"""Grader `number_only`: check that the answer is a number and nothing else."""

from typing import ClassVar, Literal

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.graders.text.numbers import numerals

_STEPS = ((0, 1.0), (9, 0.5), (19, 0.4), (29, 0.3), (39, 0.2), (49, 0.1))


class NumberOnly(TextGrader):
    """1 if the answer is a number and nothing else; less with more text. It does not check whether it is right.

    The score depends on how many characters the answer has besides its first number: 0 → 1; fewer than 10 → 0.5, 20 →
    0.4, 30 → 0.3, 40 → 0.2, 50 → 0.1; otherwise 0. White space around the answer is ignored, and sign, commas, decimals
    and exponent are part of the number. An answer without a number scores 0.
    """

    type: Literal["number_only"] = "number_only"

    examples: ClassVar[tuple[Example, ...]] = (
        Example("72", 1.0),
        Example(" -1,234.50\n", 1.0, note="sign, commas and decimals are part of the number"),
        Example("\u22121e3", 1.0),
        Example("$72", 0.5, note="1 character more"),
        Example("72 apples", 0.5, note="7 more"),
        Example("The answer is 72", 0.4, note="14 more"),
        Example("I think that the answer is 72", 0.3, note="27 more"),
        Example("The answer that I have come up with is 72.", 0.1, note="40 more"),
        Example("After some thought I have come to the conclusion 72", 0.1, note="49 more"),
        Example("After some thought I have come to the conclusion, 72", 0.0, note="50 more"),
        Example("1 2 3", 0.5, note="the first number counts"),
        Example("3.14.15", 0.0, note="no number"),
        Example("x7", 0.0),
        Example("", 0.0),
    )

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """The score for the number of characters besides the number."""
        answer = text.strip()
        number = next((found.number for found in numerals(answer) if found.number), None)
        if number is None:
            return Score(0.0, "no number")
        beside = len(answer) - (number.span[1] - number.span[0])
        score = next((score for most, score in _STEPS if beside <= most), 0.0)
        return Score(score, f"{beside} characters besides the number" if beside else "")
