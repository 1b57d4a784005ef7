"""Completions with their rewards, for people to read: some of each step, on the terminal and in a file."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.processes import is_main_process
from posttrain.dataserver.schemas import Meta
from posttrain.rl.curriculum import stage_name
from posttrain.rl.rollout.rollout import Rollout

# How often completions are shown: so many times in a run.
_SHOWINGS = 10
_SHOWN_AT_ONCE = 4


class Transcript:
    """The completions that a run keeps and shows, step by step."""

    def __init__(self, file: Path, meta: Meta, max_steps: int) -> None:
        self._file, self._meta = file, meta
        self._every = max(1, max_steps // _SHOWINGS)

    def stage_of(self, iteration: int) -> str:
        """The stage of the dataserver's curriculum that an iteration is in."""
        return stage_name(self._meta, iteration)

    def add(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Keep the completions of the first prompt of a step, counted from 1, and now and then show some of them."""
        if not is_main_process() or not rollouts:
            return
        group = one_group(rollouts)
        append_lines(self._file, step, group)
        if (step - 1) % self._every == 0:
            best_first = sorted(group, key=lambda each: -(each.reward or -1))
            lines = [shown(each) for each in best_first[:_SHOWN_AT_ONCE]]
            console.print("\n".join([f"step {step} asked: {on_one_line(group[0].prompt.text)}", *lines]))


def append_lines(path: Path, step: int, graded: Iterable[Rollout]) -> None:
    """Add a line of JSON for each of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", errors="replace") as file:
        for each in graded:
            file.write(json.dumps({"step": step, **each.as_dict()}, ensure_ascii=False) + "\n")


def one_group(graded: Sequence[Rollout]) -> list[Rollout]:
    """All completions of the first prompt."""
    return [each for each in graded if each.prompt.sample_id == graded[0].prompt.sample_id]


def shown(graded: Rollout, width: int = 160) -> str:
    """One completion on a line."""
    reward = "none" if graded.reward is None else f"{graded.reward:.2f}"
    return f"  {reward:>5}  {on_one_line(graded.text, width)}"


def on_one_line(text: str, width: int = 160) -> str:
    """The start of a text, safe to print: what a model writes may hold control characters."""
    line = "".join(letter if letter.isprintable() else "␣" for letter in text.replace("\n", " ⏎ "))
    return line if len(line) <= width else line[: width - 1] + "…"
