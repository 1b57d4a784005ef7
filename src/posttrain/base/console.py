"""Terminal output: lines, tables and progress."""

import io
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import IO, Any, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from posttrain.base.processes import is_main_process

T = TypeVar("T")


class _PatientConsole(Console):
    """Survives a broken pipe, so that a run goes on when its reader is gone, e.g. when Ctrl-C also ended `tee`."""

    listener: Callable[[str], None] | None = None
    """Gets what is printed, as plain text without progress bars, even when nobody reads the terminal."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on."""
        self.quiet = True

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's."""
        super().print(*objects, **options)
        if self.listener is not None:
            text = io.StringIO()
            Console(file=text, width=_LISTENED_WIDTH, **_PLAIN).print(*objects, **options)
            self.listener(text.getvalue())

    def print_without_bar(self, text: str) -> None:
        """Print a line that a progress bar makes unnecessary: nothing on a terminal, except for the listener."""
        if not self.is_terminal:
            self.print(text)
        elif self.listener is not None:
            self.listener(text)

    @Console.file.getter
    def file(self) -> IO[str]:
        """The stream behind stderr where that is copied elsewhere: the listener has what the console writes."""
        stream = super().file
        return getattr(stream, "copied", stream)


# Lines are wrapped by the terminal, not here, so that each stays one line in a log file.
_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "soft_wrap": True}
# Of a table for the listener.
_LISTENED_WIDTH = 120
console = _PatientConsole(stderr=True, quiet=not is_main_process(), **_PLAIN)

_SECONDS_BETWEEN_LINES = 30.0


# Longer words, such as paths, are folded.
_LONGEST_WHOLE = 24


class WholeTable(Table):
    """A table that cuts no head and no name: where its columns do not fit, each row becomes lines of head and value."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, or its rows below each other."""
        least = [self._width(column, whole=False) for column in self.columns]
        room = options.max_width - sum(least) - 2 * len(least)  # two characters beside each column
        if room < 0:
            yield from self._rows_in_lines()
            return
        for column, width in zip(self.columns, least, strict=True):
            more = min(room, self._width(column, whole=True) - width)
            column.width, room = width + more, room - more
        yield from super().__rich_console__(console, options)

    def _width(self, column: Column, *, whole: bool) -> int:
        """The width of a column with all its text in one line, or else what its words and numbers need."""
        texts = [cell for each in (column.header, *column.cells) for cell in str(each).split("\n")]
        if whole or column.no_wrap:
            return max(map(cell_len, texts))
        return max((min(_LONGEST_WHOLE, cell_len(word)) for text in texts for word in text.split()), default=0)

    def _rows_in_lines(self) -> Iterator[RenderableType]:
        if self.title:
            yield Text(f"{self.title}\n")
        lines = Table.grid("", "", padding=(0, 2, 0, 1))
        for number, row in enumerate(zip(*(column.cells for column in self.columns), strict=True)):
            if number:
                lines.add_row()
            for column, cell in zip(self.columns, row, strict=True):
                if str(cell):
                    lines.add_row(Text(str(column.header)), Text(str(cell), overflow="fold"))
        yield lines
        yield Text(str(self.caption or ""))


def new_table(title: str, *columns: str, words: Collection[str] = ()) -> Table:
    """A table without rows: the first column and those in `words` hold text, which may be folded, others numbers."""
    padding = (0, 1, 0, 0)  # with the box's own space, two between columns
    table = WholeTable(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=padding, pad_edge=False)
    for place, column in enumerate(columns):
        is_text = not place or column in words
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    return table


class Counting:
    """Progress of a `with` block: a bar, or without a terminal a line every 30 seconds or more."""

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
        """Count `count` more as done."""
        self.reach(self._done + count, self._total)

    def reach(self, done: int, total: int | None) -> None:
        """Set how many are done, and the total (None if unknown)."""
        self._done, self._total = done if total is None else min(done, total), total
        self._bar.update(self._task, completed=self._done, total=total)
        if time.monotonic() - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = time.monotonic()
            console.print_without_bar(
                f"{self._doing}: {self._done:,}{'' if total is None else f' of {total:,}'} {self._unit}"
            )


def telling(items: Iterable[T], doing: str, unit: str, count: Callable[[], int]) -> Iterator[T]:
    """The items; if working on them takes long, a line says every 30 seconds how many were begun.

    For work inside of other work, where `Counting` would be a bar in a bar. `count` is called with the first line.
    """
    told, total = time.monotonic(), None
    for done, item in enumerate(items):
        if time.monotonic() - told >= _SECONDS_BETWEEN_LINES:
            told, total = time.monotonic(), count() if total is None else total
            console.print(f"{doing}: {done:,} of {total:,} {unit}")
        yield item


class TrainingProgress:
    """A bar with the stage, a few facts and the time left; plain lines without a terminal."""

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
        """Show the bar with `step` optimizer steps done."""
        self._bar.start()
        self._bar.update(self._task, completed=step)

    def step(self, row: dict[str, Any], facts: str) -> None:
        """Show a step: `row` is its line of metrics, `facts` the part of it to show."""
        self._bar.update(self._task, completed=row["step"], stage=row["stage"], facts=facts)
        if _is_worth_a_line(row["step"], self._total):
            console.print_without_bar(f"step {row['step']}/{self._total}  stage {row['stage']}  {facts}")

    def say(self, text: str) -> None:
        """Print one line above the bar."""
        console.print(text)

    def stop(self) -> None:
        """Leave the bar as it is and release the terminal."""
        self._bar.stop()


def _is_worth_a_line(step: int, total: int) -> bool:
    every = max(1, total // 20)
    return step % every == 0 or step in (1, total)
