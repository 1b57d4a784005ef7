"""Grader `crossword`: compare the letters of the answer with those of the gold."""

import re
from typing import ClassVar, Literal

from pydantic import Field

from posttrain.config.keys import shown
from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.puzzles.crossword_answers import letters_of, require_fit
from posttrain.dataserver.graders.text.completions import GradeInput, column_value
from posttrain.dataserver.graders.text.extraction import Extract, extract
from posttrain.errors import DataError

# An answer that `contains` pays for may be this long, and try one word in so many letters.
_LONGEST_PROSE, _LETTERS_PER_WORD = 400, 20
_PARIS = {"gold": "Paris", "params": {"contains": 0.25}}


class Crossword(TextGrader):
    """1 if the answer has the letters of the gold, in their order; else 0, or `contains`.

    Compared are the letters A to Z: case, accents, white space and punctuation do not count, and & is AND. An answer
    with other letters, digits or invisible characters scores 0, so letters of other scripts replace none.
    """

    type: Literal["crossword"] = "crossword"

    extract: Extract = "all"
    """The part of the answer to compare."""

    enumeration_column: str = Field(default="enumeration", min_length=1)
    """The column that holds the lengths of the words, such as `(3,4)`; where a row has it, the gold must fit it."""

    contains: float = Field(default=0.0, ge=0, lt=1)
    """Score of a longer answer in which the gold is one of the words. If this is above 0, guessing several words in
    one answer can pay: at most one word in twenty letters may have the gold's length."""

    needs_gold: ClassVar[bool] = True
    is_correctness: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("google-re2",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example("ICE CREAM", 1.0, gold="ice-cream"),
        Example("icecream", 1.0, gold="ICE CREAM", note="white space and hyphens do not count"),
        Example("DEJA VU", 1.0, gold="déjà vu", note="nor do accents"),
        Example("R and B", 1.0, gold="R & B"),
        Example("ICE", 0.0, gold="ICE CREAM"),
        Example("CREAM ICE", 0.0, gold="ICE CREAM"),
        Example("It is ICE CREAM", 0.0, gold="ICE CREAM", note="no other text is allowed"),
        Example("Answer: ICE CREAM", 1.0, gold="ICE CREAM", params={"extract": {"after": "Answer:"}}),
        Example("The capital of France is Paris.", 0.25, **_PARIS, note="the only word of five letters"),
        Example("Paris, Milan, Dover", 0.0, **_PARIS, note="a list"),
        Example("It is in comparison.", 0.0, **_PARIS, note="part of a word"),
        Example("РARIS", 0.0, gold="Paris", note="a Cyrillic Р"),
        Example("7PARIS7", 0.0, gold="Paris"),
        Example("", 0.0, gold="Paris"),
    )

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the gold has letters, and as many as the row's enumeration says."""
        gold, enumeration = self._gold(item), column_value(item.record, self.enumeration_column)
        if enumeration is not None:
            require_fit(gold, str(enumeration))

    def score_text(self, text: str, item: GradeInput) -> Score:
        """1, `contains` or 0."""
        gold, given = self._gold(item), extract(text, self.extract)
        if given is None:
            return Score(0.0, "the part that should contain the answer is missing")
        found = letters_of(given)
        if found == gold:
            return Score(1.0)
        if self.contains and _tells(given, gold, len(re.findall(r"[^\s-]+", item.gold))):
            return Score(self.contains, "the gold is one of the words")
        if found is None:
            return Score(0.0, "longer than an answer, or with other characters than A to Z and punctuation")
        return Score(0.0, f"{len(found)} letters, not {len(gold)}" if len(found) != len(gold) else "other letters")

    def _gold(self, item: GradeInput) -> str:
        letters = letters_of(item.gold) if isinstance(item.gold, str) else None
        if not letters:
            raise DataError(f"the gold must be text with letters from A to Z alone, not {shown(item.gold)}")
        return letters


def _tells(text: str, gold: str, word_count: int) -> bool:
    """Whether the gold is a word of the text, or `word_count` words in a row, and few others have its length."""
    words = [letters_of(word) for word in text.split()] if len(text) <= _LONGEST_PROSE else []
    known = [word for word in words if word]
    runs = ("".join(known[first : first + count]) for count in {1, word_count} for first in range(len(known)))
    candidates = [run for run in runs if len(run) == len(gold)]
    return gold in candidates and len(candidates) <= max(1, sum(map(len, known)) // _LETTERS_PER_WORD)
