"""Grader `answer_partial`: give full credit for the gold text and part of it for a near miss."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from posttrain.config.keys import shown
from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.graders.text.extraction import Extract, extract_untrimmed
from posttrain.dataserver.graders.text.numbers import is_near, parse_number, spelled
from posttrain.errors import DataError


class AnswerPartial(TextGrader):
    """1 for the gold text; less if it has white space around it, or for a number near the gold; else 0.

    It rewards near misses, so it does not measure correctness: use it early in training, beside a grader that does. The
    defaults are the rewards 5 (equal), 3.5 (except for white space), 2 (within 10 %), 1.5 (within 20 %) and −2 or less
    (wrong) on a scale from −2 to 5, as (reward + 2) / 7. A weight of 7 keeps the distances of that scale.
    """

    type: Literal["answer_partial"] = "answer_partial"

    extract: Extract = "all"
    """The part of the answer to compare."""

    after_trimming: float = Field(default=0.786, ge=0, le=1)
    """Score of the gold text with white space around it, or of its number written differently."""

    within_10_percent: float = Field(default=0.571, ge=0, le=1)
    """Score of a number that is off by at most a tenth of the gold number."""

    within_20_percent: float = Field(default=0.5, ge=0, le=1)
    """Score of a number that is off by at most a fifth."""

    needs_gold: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("google-re2",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example("100", 1.0, gold="100"),
        Example("Paris", 1.0, gold="Paris"),
        Example(" 100\n", 0.786, gold="100", note="white space"),
        Example("1,000.0", 0.786, gold=1000, note="the same number"),
        Example("110", 0.571, gold="100"),
        Example("90", 0.571, gold="100"),
        Example("111", 0.5, gold="100"),
        Example("-120", 0.5, gold="-100"),
        Example("121", 0.0, gold="100"),
        Example("-100", 0.0, gold="100"),
        Example("0.1", 0.0, gold="0", note="no number is within a percentage of 0"),
        Example("It is 100", 0.0, gold="100", note="no other text is allowed"),
        Example("paris", 0.0, gold="Paris"),
        Example(
            "<SOLUTION>90</SOLUTION>", 0.571, gold=100, params={"extract": {"regex": "<SOLUTION>(.+?)</SOLUTION>"}}
        ),
        Example("90", 0.0, gold=100, params={"extract": {"regex": "<SOLUTION>(.+?)</SOLUTION>"}}),
        Example("90", 0.3, gold=100, params={"within_10_percent": 0.3, "within_20_percent": 0.1}),
        Example("", 0.0, gold="100"),
    )

    @model_validator(mode="after")
    def _nearer_is_better(self) -> "AnswerPartial":
        if not self.after_trimming >= self.within_10_percent >= self.within_20_percent:
            raise ValueError("after_trimming, within_10_percent and within_20_percent must not increase in this order")
        return self

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the gold is a non-empty text or a number."""
        if not _text_of(item.gold).strip():
            raise DataError("the gold text is empty")

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """1, `after_trimming`, `within_10_percent`, `within_20_percent` or 0."""
        gold = _text_of(item.gold)
        given = extract_untrimmed(text, self.extract)
        if given is None:
            return Score(0.0, "the part that should contain the answer is missing")
        if given == gold:
            return 1.0
        if given.strip() == gold.strip():
            return Score(self.after_trimming, "equal except for white space")
        return self._score_number(given, gold)

    def _score_number(self, given: str, gold: str) -> Score:
        number, right = parse_number(given), parse_number(gold)
        if number is None or right is None:
            return Score(0.0, "not equal, and not two numbers")
        if number == right:
            return Score(self.after_trimming, "the same number")
        if is_near(number, right, relative=0.1):
            return Score(self.within_10_percent, "within 10 %")
        if is_near(number, right, relative=0.2):
            return Score(self.within_20_percent, "within 20 %")
        return Score(0.0, "off by more than 20 %")


def _text_of(gold: object) -> str:
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise DataError(f"the gold must be a text or a number, not {shown(gold)}")
    return spelled(gold)
