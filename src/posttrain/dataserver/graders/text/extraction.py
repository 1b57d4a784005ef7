"""Rules for the part of a text that is the answer, for data sets and graders alike."""

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.text.numbers import last_number
from posttrain.dataserver.graders.text.patterns import Pattern, compile_pattern

_BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


class AfterMarker(StrictModel):
    """What follows the last occurrence of a marker, up to the end."""

    after: str = Field(min_length=1)
    """The marker. `#` begins a comment in YAML, so write `"####"` in quotes."""


class LastMatch(StrictModel):
    """The last match of a pattern."""

    regex: Pattern
    """A regular expression in RE2 syntax; its first group is taken if it has one."""

    @field_validator("regex")
    @classmethod
    def _never_empty(cls, regex: str) -> str:
        if compile_pattern(regex).fullmatch(""):
            raise ValueError(f"{regex!r} matches the empty text, so its last match is empty; write + in place of *")
        return regex


def _one_rule(value: object) -> object:
    if isinstance(value, dict) and {"after", "regex"} <= value.keys():
        raise ValueError("give one of `after` and `regex`, not both")
    return value


Extract = Annotated[Literal["boxed", "last_number", "all"] | AfterMarker | LastMatch, BeforeValidator(_one_rule)]
"""`boxed`: what the last `\\boxed{…}` or `\\fbox{…}` holds; `last_number`: the last plain number; `all`: the whole
text; `after: MARKER`: what follows the last marker; `regex: PATTERN`: the last match, or its first group."""


def extract(text: str, how: Extract) -> str | None:
    """Take out the part, without white space around it; None where it is not there or is empty."""
    part = extract_untrimmed(text, how)
    return part.strip() or None if part is not None else None


def extract_untrimmed(text: str, how: Extract) -> str | None:
    """The part as it stands; None where it is not there."""
    if isinstance(how, AfterMarker):
        _, marker, after = text.rpartition(how.after)
        return after if marker else None
    if isinstance(how, LastMatch):
        pattern = compile_pattern(how.regex)
        match = pattern.last(text)
        return match.group(1 if pattern.groups else 0) if match else None
    if how == "boxed":
        boxes = find_boxes(text)
        return text[boxes[-1]] if boxes else None
    if how == "last_number":
        number = last_number(text)
        return text[slice(*number.span)] if number else None
    return text


def find_boxes(text: str) -> list[slice]:
    """Where the content of each `\\boxed{…}` and `\\fbox{…}` is, by where they open.

    A box that is never closed is none.
    """
    boxes = []
    opened: list[int | None] = []  # where the content of a box starts; None for other braces
    for brace in _BRACES.finditer(text):
        if brace["box"]:
            opened.append(brace.end())
        elif brace["open"]:
            opened.append(None)
        elif brace["close"] and opened:
            start = opened.pop()
            if start is not None:
                boxes.append(slice(start, brace.start()))
    return sorted(boxes, key=lambda box: box.start)
