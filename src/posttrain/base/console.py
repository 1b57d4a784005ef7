"""The display of a run in a terminal."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
