"""Rules and patterns that extract the answer from a text, for data sets and graders.

Patterns use RE2, so that no model output can make one run for ever: matching takes linear time for every pattern, which
is why RE2 has no look-around and no back-references. (A counted repetition such as `.{1000}` is still slow.) `\\d`,
`\\w`, `\\s` and `\\b` are ASCII only, `.` does not match a line feed unless the pattern starts with `(?s)`, and `$` is
the end of the text unless it starts with `(?m)`.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Annotated, Literal, Protocol, cast

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.text.numbers import last_number
from posttrain.errors import ConfigError

_MEMORY = 8 * 1024 * 1024  # bytes for a compiled pattern and the states of its automaton
_READ_FOR_LAST = 200_000_000  # characters: each of many matches may scan to the end of the text
_SURROGATE = re.compile("[\ud800-\udfff]")

_BRACES = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


class Match(Protocol):
    """Where a pattern matched; group 0 is the whole match, and a group that did not participate is None."""

    def group(self, group: int | str = 0, /) -> str | None: ...

    def span(self, group: int = 0, /) -> tuple[int, int]: ...


class CompiledPattern:
    """A compiled pattern for any Python text. A lone surrogate, which UTF-8 cannot encode, is matched as U+FFFD."""

    def __init__(self, pattern: str) -> None:
        """Compile the pattern; ValueError with the reason if RE2 cannot."""
        re2 = _load_re2()
        options = re2.Options()
        options.max_mem = _MEMORY
        options.log_errors = False
        try:
            self._compiled = re2.compile(pattern, options)
        except UnicodeEncodeError:
            raise ValueError("a pattern cannot contain a lone surrogate (half a character)") from None
        except re2.error as error:
            reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
            raise ValueError(
                f"not a pattern in RE2 syntax: {reason}. RE2 has no look-around such as (?=…) or (?<!…), no "
                "back-references such as \\1, and no repetition above 1000"
            ) from None

    @property
    def groups(self) -> int:
        """Number of groups in the pattern."""
        return self._compiled.groups

    @property
    def group_names(self) -> Mapping[str, int]:
        """Named groups and their numbers."""
        return self._compiled.groupindex

    def search(self, text: str) -> Match | None:
        """The first match anywhere in the text."""
        return cast("Match | None", self._compiled.search(_encodable(text)))

    def fullmatch(self, text: str) -> Match | None:
        """A match of the whole text."""
        return cast("Match | None", self._compiled.fullmatch(_encodable(text)))

    def finditer(self, text: str) -> Iterator[Match]:
        """All non-overlapping matches, from the left. Iterating over all of them may take quadratic time."""
        return cast("Iterator[Match]", self._compiled.finditer(_encodable(text)))

    def last(self, text: str) -> Match | None:
        """The last of the non-overlapping matches; None if there is none, or if there are too many.

        A text of a thousand characters may have 200,000 matches, one of a million characters 200.
        """
        most = _READ_FOR_LAST // max(len(text), 1)
        last, count = None, 0
        for match in itertools.islice(self.finditer(text), most + 1):
            last, count = match, count + 1
        return last if count <= most else None


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> CompiledPattern:
    """Compile a pattern, or take it from the cache; ValueError with the reason if RE2 cannot."""
    return CompiledPattern(pattern)


def _load_re2() -> ModuleType:
    try:
        import re2
    except ImportError:
        raise ConfigError("patterns need the package google-re2: pip install 'posttrain-toolkit[server]'") from None
    return re2


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)  # same length, so that spans stay valid
    return text


def _checked(pattern: str) -> str:
    compile_pattern(pattern)
    return pattern


Pattern = Annotated[str, AfterValidator(_checked)]
"""A regular expression in RE2 syntax, compiled when the config is loaded."""


class AfterMarker(StrictModel):
    """What follows the last occurrence of a marker, up to the end."""

    after: str = Field(min_length=1)
    """The marker. `#` starts a comment in YAML, so write `"####"` in quotes."""


class LastMatch(StrictModel):
    """The last match of a pattern."""

    regex: Pattern
    """A regular expression in RE2 syntax; its first group is used if it has one."""

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
"""`boxed`: the content of the last `\\boxed{…}` or `\\fbox{…}`; `last_number`: the last plain number; `all`: the whole
text; `after: MARKER`: the text after the last marker; `regex: PATTERN`: the last match, or its first group."""


def extract(text: str, how: Extract) -> str | None:
    """Extract the part, without white space around it; None if it is missing or empty."""
    part = extract_untrimmed(text, how)
    return part.strip() or None if part is not None else None


def extract_untrimmed(text: str, how: Extract) -> str | None:
    """Extract the part unchanged; None if it is missing."""
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
    """Where the content of each `\\boxed{…}` and `\\fbox{…}` is, in order of their openings.

    A box that is never closed does not count.
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
