"""Grader `contains`: check that the answer contains the wanted texts and none of the forbidden ones."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput, plain
from posttrain.errors import DataError

Wanted = Annotated[str, Field(min_length=1, pattern=r"\S")]


class Contains(TextGrader):
    """1 if the answer contains enough of the wanted texts and none of the forbidden ones; else 0.

    It ignores everything else in the answer, so one that lists everything earns 1 too: this does not check correctness.
    Texts are compared after Unicode normalisation (NFKC) and without invisible characters. Letters of other scripts
    that look alike are different letters, so forbidden texts can be written with them.
    """

    type: Literal["contains"] = "contains"

    texts: tuple[Wanted, ...] | None = None
    """The wanted texts; if omitted, the gold: a text, or a list of texts."""

    at_least: int | None = Field(default=None, ge=1)
    """How many of them are enough; if omitted, all."""

    fraction: bool = False
    """Whether fewer than enough earn their share instead of 0."""

    forbidden: tuple[Wanted, ...] = ()
    """Texts any one of which makes the score 0."""

    whole_words: bool = False
    """Whether to match whole words only, so that `concatenate` does not contain `cat`."""

    ignore_case: bool = True
    """Whether upper and lower case count as equal."""

    examples: ClassVar[tuple[Example, ...]] = (
        Example("Rome and Paris", 1.0, params={"texts": ["paris", "rome"]}, note="all of them, in any order"),
        Example("Rome", 0.0, params={"texts": ["Paris", "Rome"]}),
        Example("Rome", 0.5, params={"texts": ["Paris", "Rome"], "fraction": True}),
        Example("Rome", 1.0, params={"texts": ["Paris", "Rome"], "at_least": 1}),
        Example("Rome, Rome", 0.5, params={"texts": ["Paris", "Rome"], "fraction": True}, note="each counts once"),
        Example("Rome, I am sorry", 0.0, params={"texts": ["Rome"], "forbidden": ["sorry"]}),
        Example("concatenate", 1.0, params={"texts": ["cat"]}),
        Example("concatenate", 0.0, params={"texts": ["cat"], "whole_words": True}),
        Example("It is Paris.", 1.0, gold="Paris", note="the gold is wanted"),
        Example("Paris", 0.0, gold=["Paris", "Rome"], note="all of a list"),
        Example("paris", 0.0, gold="Paris", params={"ignore_case": False}),
        Example("Fine.", 1.0, params={"texts": [], "forbidden": ["sorry"]}, note="only forbidden texts"),
        Example(" ", 0.0, params={"texts": [], "forbidden": ["sorry"]}, note="an empty answer earns nothing"),
        Example("\u200b", 0.0, params={"texts": [], "forbidden": ["sorry"]}, note="nor does an invisible one"),
        Example(
            "I am so\u200brry", 0.0, params={"texts": [], "forbidden": ["sorry"]}, note="invisible signs hide no word"
        ),
        Example(
            "I am ｓｏｒｒｙ", 0.0, params={"texts": [], "forbidden": ["sorry"]}, note="full-width letters are the same"
        ),
        Example("I am sоrry", 1.0, params={"texts": [], "forbidden": ["sorry"]}, note="a Cyrillic о is another letter"),
        Example("", 0.0, gold="Paris"),
    )

    @model_validator(mode="after")
    def _can_be_reached(self) -> "Contains":
        if self.texts is None:
            return self
        if not self.texts and not self.forbidden:
            raise ValueError("texts and forbidden are both empty; list texts, or leave texts out to require the gold")
        self._enough(self.texts)
        return self

    def check_row(self, item: GradeInput) -> None:
        """Without `texts`, raise DataError unless the gold is a text or list of texts, at least `at_least` of them."""
        self._enough(self._wanted(item))

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """The share of the required number of texts (with `fraction`), or 1 or 0."""
        text = self._folded(text)
        if not text.strip():
            return Score(0.0, "empty")
        for unwanted in self.forbidden:
            if self._holds(text, unwanted):
                return Score(0.0, f"contains {unwanted!r}")
        wanted = self._wanted(item)
        found, enough = sum(self._holds(text, each) for each in wanted), self._enough(wanted)
        share = min(1.0, found / enough) if enough else 1.0
        return Score(share if self.fraction else float(share == 1), f"{found} of {len(wanted)}")

    def _wanted(self, item: GradeInput) -> tuple[str, ...]:
        if self.texts is not None:
            return tuple(dict.fromkeys(self.texts))
        golds = item.gold if isinstance(item.gold, list) else [item.gold]
        if not golds or not all(isinstance(gold, str) and gold.strip() for gold in golds):
            raise DataError(f"the gold must be a text or a list of texts, not {item.gold!r}"[:200])
        return tuple(dict.fromkeys(golds))

    def _enough(self, wanted: tuple[str, ...]) -> int:
        enough, different = self.at_least or len(set(wanted)), len(set(wanted))
        if enough > different:
            raise DataError(f"at_least is {enough}, but only {different} different texts are required")
        return enough

    def _folded(self, text: str) -> str:
        return plain(text).casefold() if self.ignore_case else plain(text)

    def _holds(self, text: str, wanted: str) -> bool:
        wanted = self._folded(wanted)
        if not self.whole_words:
            return wanted in text
        return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text) is not None
