"""Completions with their rewards, for people to read: some of each step, on the terminal and in a file."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.dataserver.schemas import GradeResult
from posttrain.rl.rollout.prompts import Prompt


@dataclass(frozen=True)
class GradedCompletion:
    """One completion and what became of it.

    Attributes:
        tokens: its length.
        was_cut: whether it reached the length limit.
        result: None where it was not graded: its prompt is too long, or the dataserver cannot be reached.
    """

    prompt: Prompt
    text: str
    tokens: int
    was_cut: bool
    result: GradeResult | None

    @property
    def reward(self) -> float | None:
        """None where there is none, which is not 0."""
        return self.result.reward if self.result is not None else None

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON."""
        result = self.result
        return {
            "sample_id": self.prompt.sample_id,
            "prompt": self.prompt.text,
            "completion": self.text,
            "tokens": self.tokens,
            "truncated": self.was_cut,
            "status": result.status if result is not None else "not graded",
            "reward": self.reward,
            "reason": result.reason if result is not None else "",
            "scores": {name: each.score for name, each in result.components.items()} if result is not None else {},
        }


def append_lines(path: Path, step: int, graded: Iterable[GradedCompletion]) -> None:
    """Add a line of JSON for each of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", errors="replace") as file:
        for each in graded:
            file.write(json.dumps({"step": step, **each.as_dict()}, ensure_ascii=False) + "\n")


def one_group(graded: Sequence[GradedCompletion]) -> list[GradedCompletion]:
    """All completions of the first prompt."""
    return [each for each in graded if each.prompt.sample_id == graded[0].prompt.sample_id]


def shown(graded: GradedCompletion, width: int = 160) -> str:
    """One completion on a line."""
    reward = "none" if graded.reward is None else f"{graded.reward:.2f}"
    return f"  {reward:>5}  {on_one_line(graded.text, width)}"


def on_one_line(text: str, width: int = 160) -> str:
    """The start of a text, safe to print: what a model writes may hold control characters."""
    line = "".join(letter if letter.isprintable() else "␣" for letter in text.replace("\n", " ⏎ "))
    return line if len(line) <= width else line[: width - 1] + "…"
