"""Names that people and programs read: in logs, tables and plots, and as folders."""

import re
from typing import Annotated

from pydantic import AfterValidator

# What steers a terminal or breaks a line, what turns the direction of writing, and halves of characters.
_NOT_FOR_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(name: str) -> str:
    """The name as it is; ValueError where it would do more in a terminal than stand there."""
    if found := _NOT_FOR_NAMES.search(name):
        raise ValueError(f"a name is plain text on one line, without U+{ord(found.group()):04X}; take that out")
    return name


OneLine = Annotated[str, AfterValidator(one_line)]
"""Text that can stand in a line of a log."""
