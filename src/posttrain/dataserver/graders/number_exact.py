"""Grader `number_exact`: check that the answer's last number equals the gold's."""

from itertools import islice
from typing import ClassVar, Literal

from pydantic import Field

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags
from posttrain.dataserver.graders.text.extraction import Extract, extract
from posttrain.dataserver.graders.text.numbers import gold_number, is_near, last_number, numerals


class NumberExact(TextGrader):
    """1 if the last number of the answer equals the gold's, else 0.

    Numbers are compared as exact decimals, so 1,234 and 1234.0 are the same. If the last thing written in digits is not
    a plain number but a fraction, a sum, `15km`, `7 million` or `1.000,50`, the score is 0, because its meaning is
    unclear. The same applies after a detached minus sign, as in `- 7`. Only one guess counts: a list of candidates
    earns the full score if the right one is last; `max_numbers: 1` rejects lists.
    """

    type: Literal["number_exact", "math_exact"] = "number_exact"

    extract: Extract = "last_number"
    """Where in the answer to look for the number; the last one there counts."""

    relative_tolerance: float = Field(default=0.0, ge=0, lt=1)
    """How far off the number may be, as a share of the gold number."""

    absolute_tolerance: float = Field(default=0.0, ge=0)
    """Or: how far off it may be in absolute terms."""

    max_numbers: int | None = Field(default=None, ge=1)
    """An answer (or its extracted part) that contains more numbers scores 0; null sets no limit."""

    needs_gold: ClassVar[bool] = True
    is_correctness: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("google-re2",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example("The answer is 72.", 1.0, gold="72"),
        Example("The answer is 73.", 0.0, gold="72"),
        Example("$1,234.00", 1.0, gold=1234, note="commas, trailing zeros and currency are ignored"),
        Example("1", 0.0, gold="1,234", note="the part before a comma is not the number"),
        Example("+5", 1.0, gold="5.0"),
        Example("\u22125", 1.0, gold=-5, note="the typographic minus sign"),
        Example("5-", 1.0, gold=5),
        Example("- 7", 0.0, gold=7, note="a detached sign, another dash or a word makes the number unclear"),
        Example("- 7", 0.0, gold=-7),
        Example(r"$x = -\,7$", 0.0, gold=7),
        Example("\u20147", 0.0, gold=7),
        Example("minus 7", 0.0, gold=7),
        Example("1e3", 1.0, gold=1000),
        Example("72 or 73", 0.0, gold="72", note="the last number counts, so listing candidates does not help"),
        Example("71, 72", 1.0, gold="72", note="but the last guess counts"),
        Example("71, 72", 0.0, gold="72", params={"max_numbers": 1}),
        Example("72, 72", 0.0, gold="72", params={"max_numbers": 1}),
        Example("48 + 24 = 72", 1.0, gold="72"),
        Example("0 + 72", 0.0, gold="72", note="a sum that is not evaluated is not a number"),
        Example("6 x 7", 0.0, gold="7"),
        Example("7!", 0.0, gold="7", note="a factorial, even if it is only an exclamation"),
        Example("7 million", 0.0, gold="7"),
        Example(r"\boxed{7\text{ million}}", 0.0, gold="7"),
        Example("7 lakh", 0.0, gold="7"),
        Example("72‰", 0.0, gold="72"),
        Example("18^2", 0.0, gold="18", note="nor is a power"),
        Example(r"18^\circ", 1.0, gold="18", note="but degrees are a unit"),
        Example("<7", 0.0, gold="7", note="nor is a bound"),
        Example("1/7", 0.0, gold="7", note="nor is a fraction: see math_verify"),
        Example("7.1.2", 0.0, gold="7.1", note="nor is a version"),
        Example("1.000,50", 0.0, gold="1000.5", note="only commas separate thousands"),
        Example("1 234", 0.0, gold="1234"),
        Example("172", 0.0, gold="72"),
        Example("x72", 0.0, gold="72", note="nor are digits in a word"),
        Example("７２", 0.0, gold="72", note="nor are digits of other scripts"),
        Example("3.1416", 0.0, gold=3.14159),
        Example("3.1416", 1.0, gold=3.14159, params={"relative_tolerance": 1e-4}),
        Example("99.5", 1.0, gold=100, params={"absolute_tolerance": 0.5}),
        Example("99.49", 0.0, gold=100, params={"absolute_tolerance": 0.5}),
        Example(r"So \boxed{72}, as 2 + 2 = 4", 1.0, gold=72, params={"extract": "boxed"}),
        Example("48+24=72\n#### 72", 1.0, gold="72", params={"extract": {"after": "####"}}),
        Example("It is 72", 0.0, gold="72", params={"extract": {"after": "####"}}, note="the marker is missing"),
        Example("<think>72</think>I do not know", 0.0, gold="72", tags=ReasoningTags()),
        Example("<think>72", 0.0, gold="72", tags=ReasoningTags(), note="the reasoning is not closed"),
        Example("", 0.0, gold="0"),
    )

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the gold is a number, or a text with exactly one."""
        gold_number(item.gold)

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """1 or 0."""
        part = text if self.extract == "last_number" else extract(text, self.extract)
        if part is None:
            return Score(0.0, "the part that should contain the number is missing")
        if self.max_numbers is not None and len(list(islice(numerals(part), self.max_numbers + 1))) > self.max_numbers:
            return Score(0.0, f"more than {self.max_numbers} numbers")
        given = last_number(part)
        if given is None:
            return Score(0.0, "there is no plain number at the end")
        return float(is_near(given.value, gold_number(item.gold), self.relative_tolerance, self.absolute_tolerance))
