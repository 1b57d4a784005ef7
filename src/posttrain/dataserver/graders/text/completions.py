"""A completion split into reasoning and answer, its visible characters, and the record that it answers."""

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from posttrain.config.strict import StrictModel


class ReasoningTags(StrictModel):
    """The tags around the reasoning that comes before an answer."""

    open: str = Field(default="<think>", min_length=1)
    """Opens the reasoning."""

    close: str = Field(default="</think>", min_length=1)
    """Closes the reasoning; the answer is what follows the last one."""

    opened_in_prompt: bool = False
    """Whether the chat template already ends the prompt with the opening tag, as for DeepSeek-R1."""

    @model_validator(mode="after")
    def _tags_differ(self) -> "ReasoningTags":
        if self.open in self.close or self.close in self.open:
            raise ValueError(f"{self.open!r} and {self.close!r} must not contain one another")
        return self


class Parts(NamedTuple):
    """Both None where the tags are wanted and the reasoning is never closed: then there is no answer."""

    reasoning: str | None
    answer: str | None


def split_completion(completion: str, tags: ReasoningTags | None) -> Parts:
    """Take a completion apart; without tags all of it is the answer.

    The answer is what follows the LAST closing tag, so that nothing inside a second block of reasoning counts.
    """
    if tags is None:
        return Parts(None, completion)
    before, close, answer = completion.rpartition(tags.close)
    if not close:
        return Parts(None, None)
    _, opened, reasoning = before.partition(tags.open)
    if not opened:
        if not tags.opened_in_prompt:
            return Parts(None, None)
        reasoning = before
    return Parts(reasoning, answer)


def completion_digest(completion: str) -> str:
    """SHA-256 of what a model wrote, in UTF-8, as hex digits."""
    return hashlib.sha256(completion.encode("utf-8", "surrogatepass")).hexdigest()


def column_value(record: Mapping[str, Any], column: str) -> Any:
    """The column of that name, or else, for `a.b`, key b of the object in column a; None where there is none."""
    if column in record:
        return record[column]
    head, _, rest = column.partition(".")
    inner = record.get(head)
    return column_value(inner, rest) if rest and isinstance(inner, Mapping) else None


@dataclass(frozen=True)
class GradeInput:
    """One completion, as a grader sees it."""

    completion: str
    """All that the model wrote."""

    answer: str | None
    """What follows the reasoning; None where the reasoning tags are missing, or before `split`."""

    reasoning: str | None = None
    """What stands between the reasoning tags; None without tags."""

    gold: Any = None
    """The record's right answer, as the data set's `gold` section extracts it; None where it has no such section."""

    record: Mapping[str, Any] = field(default_factory=dict)
    """The row of the data set, with all its columns."""

    prompt: str = ""
    """The text of the last user message."""

    completion_tokens: int | None = None
    """Length of the completion in tokens, if the trainer told it."""

    truncated: bool | None = None
    """Whether generation stopped at its limit, if the trainer told it."""

    tags: ReasoningTags | None = None
    """The reasoning tags of the data set."""

    def split(self) -> "GradeInput":
        """The same with its reasoning and its answer, as its tags tell."""
        reasoning, answer = split_completion(self.completion, self.tags)
        return replace(self, reasoning=reasoning, answer=answer)


# Control and format characters, fillers, blanks and variation selectors; not white space.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U00013440\U00016fe4\U0001bca0-\U0001bca3"
    "\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)

_ASCII_INVISIBLE = {code: None for code in range(128) if _INVISIBLE.match(chr(code))}

# Normalising takes quadratic time on heaps of accents, so a long one is taken in pieces.
_PIECE = re.compile(r"[^ \n]{1,200}")


def without_invisible(text: str) -> str:
    """The text without characters that leave no mark."""
    return text.translate(_ASCII_INVISIBLE) if text.isascii() else _INVISIBLE.sub("", text)  # the former is faster


def visible(text: str) -> str:
    """The same without white space at both ends: empty where there is nothing to see."""
    return without_invisible(text).strip()


def plain(text: str) -> str:
    """The text in one spelling (NFKC), without characters that leave no mark."""
    text = without_invisible(text)
    return text if text.isascii() else _PIECE.sub(lambda piece: unicodedata.normalize("NFKC", piece[0]), text)
