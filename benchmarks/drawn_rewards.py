"""A reward drawn at random, but fixed by the completion: it differs within any group, whoever computes it."""

import zlib
from typing import Any


def drawn(text: str) -> float:
    """A number in [0, 1]."""
    return zlib.crc32(text.encode()) % 1001 / 1000


def score(item: Any) -> float:
    """The same for the dataserver's grader `python`."""
    return drawn(item.completion)
