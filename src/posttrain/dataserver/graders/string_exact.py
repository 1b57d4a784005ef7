"""Grader `string_exact`: check that the answer equals the gold text."""

import unicodedata
from typing import Any, ClassVar, Literal

from posttrain.dataserver.graders.base import Example, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError

# `ignore_punctuation` can remove more, but an answer with that much punctuation is not the gold text.
_MOST_SHRINKAGE = 8

_OPENING = ",;:!?'\"()[]"  # without the point, for .5 and .NET
_CLOSING = f".{_OPENING}"


class StringExact(TextGrader):
    """1 if the answer equals the gold text, or one of them if the gold is a list; else 0.

    Both are compared after Unicode normalisation (NFKC), with white space collapsed and trimmed.
    """

    type: Literal["string_exact"] = "string_exact"

    ignore_case: bool = True
    """Whether upper and lower case count as equal."""

    ignore_punctuation: bool = False
    """Whether the signs . , ; : ! ? ' " ( ) [ ] at the ends of words are ignored, except for a point before a word.
    Signs within words and all others count, as in -5, C++, C#, 3.5 and don't."""

    needs_gold: ClassVar[bool] = True
    is_correctness: ClassVar[bool] = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example("Paris", 1.0, gold="Paris"),
        Example("  paris\n", 1.0, gold="Paris", note="white space and case do not count"),
        Example("Paris.", 0.0, gold="Paris", note="punctuation does by default"),
        Example("Paris.", 1.0, gold="Paris", params={"ignore_punctuation": True}),
        Example("Paris, (France)!", 1.0, gold="Paris France", params={"ignore_punctuation": True}),
        Example("5", 0.0, gold="-5", params={"ignore_punctuation": True}, note="signs with a meaning are kept"),
        Example("C#", 0.0, gold="C++", params={"ignore_punctuation": True}),
        Example("35", 0.0, gold="3.5", params={"ignore_punctuation": True}),
        Example("It is Paris", 0.0, gold="Paris", note="no other text is allowed"),
        Example("NYC", 1.0, gold=["New York", "NYC"], note="a list of golds: any of them"),
        Example("", 0.0, gold="Paris"),
        Example("Ｐａｒｉｓ", 1.0, gold="Paris", note="full-width letters are the same under NFKC"),
        Example("Раris", 0.0, gold="Paris", note="Cyrillic letters that look alike are not"),
    )

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the gold is a non-empty text or a number, or a list of them."""
        for gold in self._golds(item.gold):
            if not self._normal(gold):
                raise DataError("the gold text is empty")

    def score_text(self, text: str, item: GradeInput) -> float:
        """1 or 0."""
        golds = [self._normal(gold) for gold in self._golds(item.gold)]
        collapsed = " ".join(text.split())
        # Normalising takes quadratic time on long runs of accents, and makes a text at most a few times shorter.
        if len(collapsed) > _MOST_SHRINKAGE * (1 + max(map(len, golds))):
            return 0.0
        return float(self._normal(collapsed) in golds)

    def _golds(self, gold: Any) -> list[str]:
        golds = gold if isinstance(gold, list) else [gold]
        if not golds or not all(isinstance(text, str | int | float) and not isinstance(text, bool) for text in golds):
            raise DataError(f"the gold must be a text or a list of texts, not {gold!r}"[:200])
        return [str(text) for text in golds]

    def _normal(self, text: str) -> str:
        normal = unicodedata.normalize("NFKC", text)
        normal = normal.casefold() if self.ignore_case else normal
        words = normal.split()
        if self.ignore_punctuation:
            words = [word.lstrip(_OPENING).rstrip(_CLOSING) for word in words]
        return " ".join(filter(None, words))
