"""Make text from users, files and models safe to show in a message or a terminal."""

from collections.abc import Sequence
from pathlib import Path

_LONGEST_FILE_NAME = 1000


def as_shown(path: Path) -> str:
    """A file's name as a message shows it: on one line, and without what would steer a terminal."""
    name = str(path)
    if len(name) > _LONGEST_FILE_NAME:
        name = f"{name[: _LONGEST_FILE_NAME // 2]}…{name[-_LONGEST_FILE_NAME // 2 :]}"
    return on_one_line(name)


def on_one_line(text: str) -> str:
    """Write line breaks and other characters that a terminal cannot show as escapes."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


# A fault may quote what is in the data.
_LONGEST_FAULT = 300


def clipped(text: str) -> str:
    """The text at a length that a message can hold, and on one line, whatever the data hold."""
    return on_one_line(text[:_LONGEST_FAULT]) + "..." * (len(text) > _LONGEST_FAULT)


def first_of(names: Sequence[str], most: int = 5) -> str:
    """The first few names as a list in a sentence, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def one_line(text: str, longest: int) -> str:
    """The beginning of a text that may come from a model: without line ends and what a terminal would obey."""
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
    return line if len(line) <= longest else f"{line[:longest]}..."


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
