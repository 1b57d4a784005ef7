"""What a chat printed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    """Answers on stdout, all else on stderr."""

    out: str
    err: str
