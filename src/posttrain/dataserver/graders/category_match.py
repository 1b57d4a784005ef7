"""Grader `category_match`: check that the answer is the right one of a few labels."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError

_LABELS = {"allowed_categories": ["Math", "Applied Math", "Art"]}
_CHEAPER = {**_LABELS, "contained_score": 0.5}


class CategoryMatch(TextGrader):
    """1 if the answer is the gold label and nothing else; else 0, whether the label is wrong or missing.

    White space is collapsed and trimmed before labels are compared.
    """

    type: Literal["category_match"] = "category_match"

    allowed_categories: tuple[Annotated[str, Field(pattern=r"\S")], ...] = Field(min_length=2)
    """All labels; every gold answer must be one of them."""

    ignore_case: bool = True
    """Whether upper and lower case count as equal."""

    contained_score: float = Field(default=0.0, ge=0, le=1)
    """Score of a longer answer that contains exactly one of the labels, as a whole word, if that is the gold. If this
    is above 0, `not Math` earns it too."""

    needs_gold: ClassVar[bool] = True
    is_correctness: ClassVar[bool] = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example("Math", 1.0, gold="Math", params=_LABELS),
        Example(" math\n", 1.0, gold="Math", params=_LABELS, note="white space and case do not count"),
        Example("math", 0.0, gold="Math", params={**_LABELS, "ignore_case": False}),
        Example("Art", 0.0, gold="Math", params=_LABELS, note="a wrong label earns nothing"),
        Example("It is Math.", 0.0, gold="Math", params=_LABELS),
        Example("It is Math.", 0.5, gold="Math", params=_CHEAPER, note="if the config allows it"),
        Example("It is Art.", 0.0, gold="Math", params=_CHEAPER),
        Example("Math, Applied Math, Art", 0.0, gold="Math", params=_CHEAPER, note="several labels"),
        Example("It is Applied Math.", 0.0, gold="Math", params=_CHEAPER, note="the longer label counts"),
        Example("the aftermath", 0.0, gold="Math", params=_CHEAPER, note="part of a word"),
        Example("", 0.0, gold="Math", params=_CHEAPER),
    )

    @field_validator("allowed_categories")
    @classmethod
    def _labels_are_whole(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(" ".join(label.split()) for label in labels)

    @model_validator(mode="after")
    def _labels_differ(self) -> "CategoryMatch":
        labels = self._labels()
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise ValueError(f"{twice[0]!r} appears more than once in allowed_categories; keep one")
        return self

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the gold is one of the labels."""
        self._gold(item.gold)

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """1, `contained_score` or 0."""
        given, gold = self._normal(text), self._gold(item.gold)
        if given == gold:
            return 1.0
        longest_first = sorted(map(re.escape, self._labels()), key=len, reverse=True)
        held = set(re.findall(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)", given))
        detail = f"contains {', '.join(sorted(held)) or 'no label'}"
        return Score(self.contained_score if held == {gold} else 0.0, detail)

    def _gold(self, gold: Any) -> str:
        label = self._normal(str(gold))
        if label not in self._labels():
            raise DataError(f"the gold {gold!r} is not in allowed_categories"[:200])
        return label

    def _labels(self) -> list[str]:
        return [self._normal(label) for label in self.allowed_categories]

    def _normal(self, text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if self.ignore_case else text
