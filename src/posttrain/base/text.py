"""Make text from users, files and models safe to show in a message or a terminal."""

import re
from collections.abc import Sequence
from pathlib import Path

_LONGEST_FILE_NAME = 1000
# A Path keeps one of several slashes.
_URL = re.compile(r"([a-z][a-z0-9+.-]+):/{1,3}([^/].*)", re.I | re.S)


def as_url(name: str | Path) -> str | None:
    """The address of data elsewhere, such as `s3://bucket/rows.jsonl`, that `name` is; None for what is local."""
    found = _URL.fullmatch(str(name))
    return found and f"{found[1].lower()}://{found[2]}"


def as_shown(path: Path) -> str:
    """A path or address for a message: on one line, without terminal control characters, shortened if very long."""
    name = as_url(path) or str(path)
    if len(name) > _LONGEST_FILE_NAME:
        name = f"{name[: _LONGEST_FILE_NAME // 2]}…{name[-_LONGEST_FILE_NAME // 2 :]}"
    return on_one_line(name)


def on_one_line(text: str) -> str:
    """Escape line breaks and other unprintable characters."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


# Control characters other than line breaks and tabs, characters that change the direction of text, and surrogates.
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def harmless(text: str) -> str:
    """The text with its line breaks, and with each character escaped that would steer a terminal."""
    return _STEERS.sub(lambda found: repr(found.group())[1:-1], text)


# A message may quote the data.
_LONGEST_FAULT = 300


def clipped(text: str) -> str:
    """The text on one line, cut to a length that fits into a message."""
    return on_one_line(text[:_LONGEST_FAULT]) + "..." * (len(text) > _LONGEST_FAULT)


def counted(count: int, noun: str) -> str:
    """A count with its noun: `1 line`, `2,000 lines`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def first_of(names: Sequence[str], most: int = 5) -> str:
    """The first `most` names, comma-separated, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def one_line(text: str, longest: int) -> str:
    """The start of a text, e.g. from a model: on one line, with U+FFFD for each unprintable character."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
    return line if len(line) <= longest else f"{line[:longest]}..."


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
