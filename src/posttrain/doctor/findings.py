"""What a check found, and what it is asked about."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from posttrain.data.config_kind import Kind
from posttrain.doctor.probe import Measured, measured

State = Literal["fine", "slow", "broken", "unchecked"]


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        told: what was found, in a sentence.
        mend: a shell command that mends it; empty if there is none.
        advice: what else to do about it.
        in_shell: whether `mend` changes the user's own shell, so that only they can run it.
    """

    state: State
    told: str
    mend: str = ""
    advice: str = ""
    in_shell: bool = False


def fine(told: str) -> Finding:
    """Nothing is to be done."""
    return Finding("fine", told)


def unchecked(told: str, mend: str = "") -> Finding:
    """The check needs something that is not here."""
    return Finding("unchecked", told, mend)


def export(state: State, told: str, command: str) -> Finding:
    """A variable of the user's shell is to be changed by `command`."""
    return Finding(state, told, command, in_shell=True)


@dataclass(frozen=True)
class Asked:
    """What the checks are asked about.

    Attributes:
        path, kind, config: the config file, and what is in it; None without one.
        measure: measures this machine with torch.
    """

    path: Path | None = None
    kind: Kind | None = None
    config: Any = None
    measure: Callable[[], Measured] = measured

    @cached_property
    def measured(self) -> Measured:
        """What was measured, once for all checks."""
        return self.measure()

    @property
    def trains(self) -> bool:
        """Whether the config is of a trainer."""
        return self.kind in ("sft", "dpo", "rl")
