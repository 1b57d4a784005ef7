"""What a terminal shows: lines, tables and progress."""

import time
from collections.abc import Collection
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from posttrain.base.processes import is_main_process


class _PatientConsole(Console):
    """A run does not end because nobody reads what it says any more, as where Ctrl-C ended `tee` too."""

    def on_broken_pipe(self) -> None:
        """Say nothing from now on."""
        self.quiet = True


# Lines are left to the terminal to wrap, so that a log file gets each of them whole.
console = _PatientConsole(
    stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True, quiet=not is_main_process()
)

_SECONDS_BETWEEN_LINES = 30.0


def new_table(title: str, *columns: str, words: Collection[str] = ()) -> Table:
    """A table without rows: its first column and those in `words` start at the left, numbers end at the right."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if not place or column in words else "right")
    return table


class Counting:
    """How many of something are done, while a `with` block lasts: a bar; a line now and then without a terminal."""

    def __init__(self, doing: str, unit: str, total: int | None = None) -> None:
        self._doing, self._unit, self._total = doing, unit, total
        self._done = 0
        self._told = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal or console.quiet,
        )
        self._task = self._bar.add_task(doing, total=total)

    def __enter__(self) -> "Counting":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def advance(self, count: int = 1) -> None:
        """So many more are done."""
        self.reach(self._done + count, self._total)

    def reach(self, done: int, total: int | None) -> None:
        """So many are done by now, of so many if that is known."""
        self._done, self._total = done if total is None else min(done, total), total
        self._bar.update(self._task, completed=self._done, total=total)
        if not console.is_terminal and time.monotonic() - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = time.monotonic()
            console.print(f"{self._doing}: {self._done:,}{'' if total is None else f' of {total:,}'} {self._unit}")


class TrainingProgress:
    """A bar with stage, a few facts and the time left; plain lines where there is no terminal."""

    def __init__(self, total_steps: int) -> None:
        self._total = total_steps
        self._bar = Progress(
            TextColumn("{task.fields[stage]}", style="bold", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal or console.quiet,
        )
        self._task = self._bar.add_task("training", total=total_steps, stage="", facts="")

    def start(self, step: int) -> None:
        """Show the bar, `step` optimizer steps done."""
        self._bar.start()
        self._bar.update(self._task, completed=step)

    def step(self, row: dict[str, Any], facts: str) -> None:
        """Show a step: `row` is its line of metrics, `facts` what is worth showing of it."""
        self._bar.update(self._task, completed=row["step"], stage=row["stage"], facts=facts)
        if not console.is_terminal and _is_worth_a_line(row["step"], self._total):
            self.say(f"step {row['step']}/{self._total}  stage {row['stage']}  {facts}")

    def say(self, text: str) -> None:
        """Print one line above the bar."""
        console.print(text)

    def stop(self) -> None:
        """Leave the bar as it is and give the terminal back."""
        self._bar.stop()


def _is_worth_a_line(step: int, total: int) -> bool:
    every = max(1, total // 20)
    return step % every == 0 or step in (1, total)
