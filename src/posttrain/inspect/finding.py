"""What is checked, and what came out of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Outcome = Literal["holds", "fails", "unknown"]
Report = Callable[[str], None]
"""Is told in one line what takes time."""


@dataclass(frozen=True)
class Finding:
    """What was checked and what came out, in one line; `unknown` is what cannot be checked."""

    outcome: Outcome
    text: str


@dataclass(frozen=True)
class Replay:
    """What config and data give today.

    Attributes:
        identity: as the manifest has it; None where it cannot be known.
        steps: what metrics.jsonl should say of each optimizer step, from the first; None where that cannot be known,
            and `why_not` says why.
    """

    identity: Mapping[str, Any] | None
    steps: Sequence[Mapping[str, Any]] | None
    why_not: str = ""
