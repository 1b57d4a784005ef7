"""Grader `choice`: check that the answer names the right one of several choices."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, field_validator

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError

_DENIED = "\u00ac"  # replaces a denied letter, so that the text before and after it is not joined
_BE = r"(?:is|are|(?:must|should|would|has[ \t]to)[ \t]be)"


class Choice(TextGrader):
    """1 if the answer chooses the gold letter and no other; else 0.

    A letter is chosen where it is written as an answer. These places are searched in order, and the first kind that
    contains a letter decides:

    1. in `\\boxed{…}`;
    2. after the word "answer": `Answer: B`, `the answer is (B)`, `answers A and B`;
    3. called right, or chosen: `the correct option is B`, `B is correct`, `I choose B`, `it must be B`;
    4. marked as a letter: alone on a line (`B`, `B.`), at the start of a line before its text (`B) Rome`), in
       brackets (`(B)`), in bold (`**B**`), or after "option" or "choice".

    If the deciding places contain different letters, nothing is chosen, so a text never chooses more than one. A letter
    elsewhere in a sentence, as in `A dog`, is not a choice; nor is one that is denied right before or after it, as in
    `not B`, `B is wrong`, `A, B and D are wrong` and `B? No`. Denials in other words are not recognised.
    """

    type: Literal["choice"] = "choice"

    choices: str | tuple[str, ...] = Field(default="ABCD", min_length=2)
    """The letters to choose from, as one text, or a list of labels such as `[A1, A2]`."""

    ignore_case: bool = False
    """Whether `b` chooses B. In sentences such as `the answer is a dog` this mistakes words for letters."""

    needs_gold: ClassVar[bool] = True
    is_correctness: ClassVar[bool] = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example("B", 1.0, gold="B"),
        Example("B.", 1.0, gold="B"),
        Example("(B)", 1.0, gold="B"),
        Example("**B**", 1.0, gold="B"),
        Example("Answer: B", 1.0, gold="B"),
        Example("**Answer:** (B) Rome", 1.0, gold="B"),
        Example("\\boxed{\\text{B}}", 1.0, gold="B"),
        Example("B) Rome, because A is in France", 1.0, gold="B"),
        Example("Not (A), and not (C). The answer is B.", 1.0, gold="B", note="the stated answer decides"),
        Example("The correct option is B.", 1.0, gold="B"),
        Example("I choose B.", 1.0, gold="B"),
        Example("B is correct", 1.0, gold="B"),
        Example("The answer is B; A, C and D are wrong.", 1.0, gold="B"),
        Example("The answer is A? No, it is C", 0.0, gold="A", note="taken back"),
        Example("The answer is A? No, it is C", 1.0, gold="C"),
        Example("(B) is wrong", 0.0, gold="B", note="a denied letter"),
        Example("The answer cannot be (B)", 0.0, gold="B"),
        Example("Answer: B, no, A", 0.0, gold="B"),
        Example("C", 0.0, gold="B"),
        Example("A dog", 0.0, gold="A", note="a word, not a letter"),
        Example("The answer is a dog", 0.0, gold="A"),
        Example("CAB", 0.0, gold="B"),
        Example("(A) or (B)", 0.0, gold="B", note="two letters choose nothing"),
        Example("Answer: A, B, C or D", 0.0, gold="A"),
        Example("Answer: A\nAnswer: B", 0.0, gold="B"),
        Example("A. Paris\nB. Rome\nC. Oslo\nD. Bern", 0.0, gold="B", note="the question repeated"),
        Example("A B C D", 0.0, gold="B"),
        Example("\\boxed{A, B}", 0.0, gold="B"),
        Example("b", 0.0, gold="B", note="unless case is ignored"),
        Example("(b)", 1.0, gold="B", params={"ignore_case": True}),
        Example("Answer: 3", 1.0, gold=3, params={"choices": "1234"}),
        Example("Answer: 3.5", 0.0, gold=3, params={"choices": "1234"}, note="another number"),
        Example("", 0.0, gold="B"),
    )

    @field_validator("choices")
    @classmethod
    def _labels_can_be_found(cls, choices: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not all(label.isalnum() for label in choices):
            raise ValueError("a choice must consist of letters and digits")
        if len({label.casefold() for label in choices}) < len(choices):
            raise ValueError("two of the choices are the same letter; list each once")
        return choices

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the gold is one of the choices."""
        self._gold(item.gold)

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """1 or 0."""
        places = _places(tuple(self.choices), self.ignore_case)
        chosen = {self._normal(label) for label in _written(places.denied.sub(_DENIED, text), places)}
        named = ", ".join(sorted(chosen)) or "no letter"
        return Score(float(chosen == {self._gold(item.gold)}), f"{named} written as an answer")

    def _gold(self, gold: Any) -> str:
        label = self._normal(str(gold).strip())
        if label not in map(self._normal, self.choices):
            raise DataError(f"the gold {gold!r} is not one of the choices {', '.join(self.choices)}"[:200])
        return label

    def _normal(self, label: str) -> str:
        return label.casefold() if self.ignore_case else label


class _Places(NamedTuple):
    """Patterns for a standalone label, for a denied one, and for the places where a label is given as the answer.

    In each of the last four, a group captures the text that contains the labels.
    """

    label: re.Pattern[str]
    denied: re.Pattern[str]
    boxed: re.Pattern[str]
    after_answer: re.Pattern[str]
    said: re.Pattern[str]
    marked: re.Pattern[str]


@lru_cache(maxsize=64)
def _places(labels: tuple[str, ...], ignore_case: bool) -> _Places:
    either = "|".join(sorted(map(re.escape, labels), key=len, reverse=True))
    # Not part of a word (CAB), a word with an apostrophe or hyphen (A's, A-level) or a number (3.5).
    label = rf"(?<!\w)(?<!\w[-.,'’])(?:{either})(?!\w|[-.,'’]\w)"
    boxed = r"\\boxed\s{0,5}\{((?:[^{}\n]|\{[^{}\n]*\}){0,60})\}"
    # What may come between two letters that are both answers; a letter before an ordinary word begins a sentence.
    joint = r"[ \t,;/|&+.()*\[\]]{0,5}(?:(?:or|and)[ \t(*\[]{1,5})?"
    another = rf"{joint}{label}(?![ \t]+(?!or\b|and\b)[a-z])"
    some = rf"({label}(?:{another})*)"
    is_ = rf"(?:\s{{1,5}}(?i:{_BE}))?[\s:]{{0,5}}(?i:option|choice|letter)?[\s:=*_`\"'(\[$]{{0,10}}"
    after_answer = rf"(?i:\banswers?){is_}{some}"
    marked = (
        rf"^[ \t>*_`#$(\[\"'-]{{0,10}}({label})(?:[ \t\r*_`$)\].:,;\"'!-]*$|[).:](?=[\s*]))",
        rf"[(\[]({label})[)\]]",
        rf"(?:\*\*|__)[(\[]?({label})(?:[)\].:]?(?:\*\*|__)|[).:][ \t])",
        rf"\b(?i:option|choice)[ \t]{{1,5}}[(*\[]{{0,3}}({label})",
    )
    flags = re.MULTILINE | (re.IGNORECASE if ignore_case else re.NOFLAG)
    patterns = (label, _denied(label), boxed, after_answer, "|".join(_said(label, some, is_)), "|".join(marked))
    return _Places(*(re.compile(pattern, flags) for pattern in patterns))


def _said(label: str, some: str, is_: str) -> Iterator[str]:
    """Patterns for letters that are said to be right or chosen."""
    right = r"(?:correct|right|best)"
    noun = r"(?:option|choice|letter|answer|one)"
    yield rf"\b(?i:(?:{right}|final|my)[ \t]{{1,5}}{noun}){is_}{some}"
    chosen = r"(?:choose|chose|pick(?:ed)?|select(?:ed)?|(?:go|went|going)[ \t]{1,5}(?:with|for))"
    yield rf"\b(?i:(?:I|we)(?:['’](?:d|ll|m)|[ \t]{{1,5}}(?:will|would|am))?[ \t]{{1,5}}{chosen}){is_}{some}"
    yield rf"\b(?i:it(?:['’]s|[ \t]{{1,5}}{_BE})){is_}{some}(?!\?)"
    yield rf"{_DENIED}[,;]?[ \t]{{1,5}}(?i:but|rather)[ \t]{{1,5}}[(*\[]{{0,3}}({label})"
    is_right = rf"[ \t]{{1,5}}(?i:{_BE}[ \t]{{1,5}}(?:the[ \t]{{1,5}})?{right})(?![\w-]|\?)"
    yield rf"({_several(label)})[)*\]_`\"'$]{{0,4}}{is_right}"


def _several(label: str) -> str:
    """Pattern for one to ten letters, as in `A, C and D`."""
    return (
        rf"{label}(?:(?:,[ \t]{{0,5}}(?:(?:and|or)[ \t]{{1,5}})?|[ \t]{{1,5}}(?:and|or|&)[ \t]{{1,5}}){label}){{0,9}}"
    )


def _denied(label: str) -> str:
    """Pattern for a letter together with the words that deny it."""
    noun = r"(?:(?:the|option|choice|letter|answer)[ \t]{1,5}){0,2}"
    no = r"(?:not|cannot|never|neither|nor|\w{1,6}n['’]t)[ \t]{1,5}(?:be[ \t]{1,5})?"
    before = rf"\b(?i:{no}{noun})[(*\[_`\"']{{0,4}}"
    is_not = r"(?:is|are|was|can|could)(?:[ \t]{1,5}(?:not|never|wrong|incorrect|false)|not|n['’]t)"
    after = rf"[)*\]}}_`\"'$]{{0,4}}(?i:[ \t]{{1,5}}{is_not}|[,.;:?!…]{{0,3}}\s{{1,5}}(?:no|nope|wait)[,.;:!])"
    return rf"{before}{label}|{_several(label)}{after}"


def _written(text: str, places: _Places) -> set[str]:
    """The letters in the first kind of place that contains any."""
    for place in (places.boxed, places.after_answer, places.said, places.marked):
        found = (next(group for group in match.groups() if group is not None) for match in place.finditer(text))
        letters = {letter for piece in found for letter in places.label.findall(piece)}
        if letters:
            return letters
    return set()
