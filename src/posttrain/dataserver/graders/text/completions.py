"""Input of a grader: a completion split into reasoning and answer, with its row; helpers for visible text."""

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
    """Closes the reasoning; the answer is what follows the last closing tag."""

    opened_in_prompt: bool = False
    """Whether the chat template already ends the prompt with the opening tag, as for DeepSeek-R1."""

    @model_validator(mode="after")
    def _tags_differ(self) -> "ReasoningTags":
        if self.open in self.close or self.close in self.open:
            raise ValueError(f"{self.open!r} and {self.close!r} must not contain one another")
        return self


class Parts(NamedTuple):
    """Reasoning and answer; both None if a required tag is missing: then there is no answer."""

    reasoning: str | None
    answer: str | None


def split_completion(completion: str, tags: ReasoningTags | None) -> Parts:
    """Split a completion into reasoning and answer; without tags all of it is the answer.

    The answer is what follows the LAST closing tag, so that nothing inside a second reasoning block counts.
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
    """SHA-256 of a completion in UTF-8, as hex digits."""
    return hashlib.sha256(completion.encode("utf-8", "surrogatepass")).hexdigest()


def column_value(record: Mapping[str, Any], column: str) -> Any:
    """The value of that column or else, for `a.b`, of key b of the object in column a; None if there is none."""
    if column in record:
        return record[column]
    head, _, rest = column.partition(".")
    inner = record.get(head)
    return column_value(inner, rest) if rest and isinstance(inner, Mapping) else None


@dataclass(frozen=True)
class GradeInput:
    """One completion, as a grader sees it."""

    completion: str
    """Everything that the model wrote."""

    answer: str | None
    """The text after the reasoning; None if the reasoning tags are missing, or before `split`."""

    reasoning: str | None = None
    """The text between the reasoning tags; None without tags."""

    gold: Any = None
    """The row's right answer, as the data set's `gold` section extracts it; None without such a section."""

    record: Mapping[str, Any] = field(default_factory=dict)
    """The row of the data set, with all its columns."""

    prompt: str = ""
    """The text of the last user message."""

    completion_tokens: int | None = None
    """Length of the completion in tokens, if the trainer sent it."""

    truncated: bool | None = None
    """Whether generation stopped at its length limit, if the trainer said so."""

    tags: ReasoningTags | None = None
    """The reasoning tags of the data set."""

    def split(self) -> "GradeInput":
        """A copy whose `reasoning` and `answer` are split from the completion according to `tags`."""
        reasoning, answer = split_completion(self.completion, self.tags)
        return replace(self, reasoning=reasoning, answer=answer)


# Control and format characters, fillers, blanks and variation selectors; not white space.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U00013440\U00016fe4\U0001bca0-\U0001bca3"
    "\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)

_ASCII_INVISIBLE = {code: None for code in range(128) if _INVISIBLE.match(chr(code))}

# Normalising takes quadratic time on long runs of accents, so a long word is normalised in pieces.
_PIECE = re.compile(r"[^ \n]{1,200}")


def without_invisible(text: str) -> str:
    """The text without invisible characters."""
    return text.translate(_ASCII_INVISIBLE) if text.isascii() else _INVISIBLE.sub("", text)  # the former is faster


def visible(text: str) -> str:
    """The text without invisible characters and surrounding white space; empty if nothing is visible."""
    return without_invisible(text).strip()


def plain(text: str) -> str:
    """The text normalised to NFKC, without invisible characters."""
    text = without_invisible(text)
    return text if text.isascii() else _PIECE.sub(lambda piece: unicodedata.normalize("NFKC", piece[0]), text)
