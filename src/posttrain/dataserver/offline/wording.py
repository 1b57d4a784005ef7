"""How results are told in one line."""

from collections.abc import Mapping

from posttrain.base.console import console
from posttrain.dataserver.schemas import Component, Status

_LONGEST = 200


def say(*lines: str) -> None:
    """Print each on a line of its own."""
    for line in lines:
        console.print(line)


def counted(count: int, noun: str) -> str:
    """A number of things: `1 line`, `2,000 lines`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def one_line(text: str, longest: int) -> str:
    """The beginning of a text that may come from a model: without line ends and what a terminal would obey."""
    line = "".join(letter if letter.isprintable() else "�" for letter in " ".join(text.split()))
    return line if len(line) <= longest else f"{line[:longest]}..."


def outcome(status: Status, value: float | None) -> str:
    """The reward or score with four digits, or why there is none."""
    return status if value is None else f"{value:.4f}"


def scores_text(components: Mapping[str, Component], before: Mapping[str, Component] | None = None) -> str:
    """What each grader says, with its own words on it; with `before`, only those that say something else now."""
    said = []
    for name, now in components.items():
        was = None if before is None else before.get(name)
        if was is None or (was.status, was.score) != (now.status, now.score):
            start = "" if was is None else f"{outcome(was.status, was.score)} → "
            said.append(f"{name} {start}{outcome(now.status, now.score)}{f', {now.detail}' if now.detail else ''}")
    return one_line("; ".join(said), _LONGEST)
