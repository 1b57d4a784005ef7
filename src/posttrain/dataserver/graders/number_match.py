"""Grader `number_match`: check that the first number in the solution block equals the gold."""

from typing import ClassVar, Literal

from pydantic import Field

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.graders.text.numbers import gold_number, numerals


class NumberMatch(TextGrader):
    """1 if the first number after the last opening tag equals the gold's, else 0.

    For solutions that give their number first and continue after it; number_exact takes the last number. Only one guess
    counts: a list of candidates earns the full score if the right one is first. On a scale from −1.5 to 3 it is worth
    4.5 · score − 1.5, so give it a weight of 4.5 beside an answer_partial of 7.
    """

    type: Literal["number_match"] = "number_match"

    open: str = Field(default="<SOLUTION>", min_length=1)
    """Opens the solution."""

    close: str = "</SOLUTION>"
    """Closes it; numbers after it do not count. If it is empty or missing, the solution has no end."""

    needs_gold: ClassVar[bool] = True
    is_correctness: ClassVar[bool] = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example("<SOLUTION>72</SOLUTION>", 1.0, gold="72"),
        Example("<SOLUTION> $1,234.0 in 3 weeks </SOLUTION>", 1.0, gold=1234, note="the first number counts"),
        Example("<SOLUTION>71, 72, 73</SOLUTION>", 0.0, gold="72"),
        Example("<SOLUTION>72, 71, 73</SOLUTION>", 1.0, gold="72", note="only one guess counts"),
        Example("<SOLUTION>- 72</SOLUTION>", 0.0, gold="72", note="a detached sign makes the number unclear"),
        Example("<SOLUTION>\u22120.50", 1.0, gold="-0.5", note="the closing tag may be missing"),
        Example("72", 0.0, gold="72", note="the opening tag may not"),
        Example("<SOLUTION></SOLUTION> 72", 0.0, gold="72"),
        Example("<SOLUTION>72</SOLUTION><SOLUTION>5</SOLUTION>", 0.0, gold="72", note="the last solution counts"),
        Example("<SOLUTION>144/2</SOLUTION>", 0.0, gold="144", note="a fraction is not a plain number"),
        Example("<SOLUTION>x72</SOLUTION>", 0.0, gold="72"),
    )

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the gold is a number, or a text with exactly one."""
        gold_number(item.gold)

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """1 or 0."""
        _, opened, solution = text.rpartition(self.open)
        if not opened:
            return Score(0.0, f"no {self.open}")
        solution = solution.partition(self.close)[0] if self.close else solution
        first = next(numerals(solution), None)
        if first is None or first.number is None:
            return Score(0.0, "the solution does not begin with a plain number")
        return float(first.number.value == gold_number(item.gold))
