"""Grader `regex`: check that the answer matches a pattern."""

from typing import ClassVar, Literal

from pydantic import model_validator

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.graders.text.extraction import Pattern, compile_pattern
from posttrain.errors import DataError


class Regex(TextGrader):
    """1 if the answer, without surrounding white space, matches a pattern; else 0.

    Patterns are RE2 and take linear time: no look-around, no back-references. With `compare: gold`, the match of the
    group `answer` must also equal the gold text.
    """

    type: Literal["regex"] = "regex"

    pattern: Pattern
    """The pattern, in RE2 syntax."""

    match: Literal["full", "search"] = "full"
    """Whether the pattern must match all of the text, or only part of it; the rest is then ignored."""

    compare: Literal["nothing", "gold"] = "nothing"
    """Whether the group `(?P<answer>…)` is compared with the gold, both without surrounding white space. If `search`
    finds several matches, the last one counts."""

    libraries: ClassVar[tuple[str, ...]] = ("google-re2",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example("2024-05-31", 1.0, params={"pattern": r"\d{4}-\d{2}-\d{2}"}),
        Example(" 2024-05-31\n", 1.0, params={"pattern": r"\d{4}-\d{2}-\d{2}"}),
        Example("on 2024-05-31", 0.0, params={"pattern": r"\d{4}-\d{2}-\d{2}"}, note="all of the answer must match"),
        Example("on 2024-05-31", 1.0, params={"pattern": r"\d{4}-\d{2}-\d{2}", "match": "search"}),
        Example("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", 0.0, params={"pattern": "(a+)+"}, note="no pattern takes forever"),
        Example(
            "It is 12 cm.",
            1.0,
            gold="12",
            params={"pattern": r"(?P<answer>\d+) cm", "match": "search", "compare": "gold"},
        ),
        Example(
            "12 cm or 13 cm",
            0.0,
            gold="12",
            params={"pattern": r"(?P<answer>\d+) cm", "match": "search", "compare": "gold"},
            note="the last match counts",
        ),
        Example("", 0.0, params={"pattern": ".+"}),
    )

    @model_validator(mode="after")
    def _has_what_is_compared(self) -> "Regex":
        if self.compare == "gold" and "answer" not in compile_pattern(self.pattern).group_names:
            raise ValueError("compare: gold needs a group (?P<answer>…) in the pattern")
        return self

    def check_row(self, item: GradeInput) -> None:
        """With `compare: gold`, raise DataError unless the gold is a non-empty text or a number."""
        if self.compare == "gold":
            _gold_text(item.gold)

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """1 or 0."""
        pattern, text = compile_pattern(self.pattern), text.strip()
        if self.compare == "nothing":
            return float((pattern.fullmatch(text) if self.match == "full" else pattern.search(text)) is not None)
        match = pattern.fullmatch(text) if self.match == "full" else pattern.last(text)
        if match is None:
            return Score(0.0, "no match")
        found = (match.group("answer") or "").strip()
        return Score(float(found == _gold_text(item.gold)), f"found {found[:100]!r}")


def _gold_text(gold: object) -> str:
    if isinstance(gold, bool) or not isinstance(gold, str | int | float) or not str(gold).strip():
        raise DataError(f"the gold must be a text or a number, not {gold!r}"[:200])
    return str(gold).strip()
