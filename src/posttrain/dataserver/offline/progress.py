"""How far a command is, for the person who waits for it."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from posttrain.base.console import console

_SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(doing: str, total: int | None = None) -> Iterator[Callable[[], None]]:
    """A function to call for each completion: a bar in a terminal, a line now and then elsewhere."""
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(doing, total=total)
        count, last_line = 0, time.monotonic()

        def advance() -> None:
            nonlocal count, last_line
            count += 1
            bar.advance(task)
            if not console.is_terminal and time.monotonic() - last_line > _SECONDS_BETWEEN_LINES:
                last_line = time.monotonic()
                console.print(f"{doing}: {count:,}{f' of {total:,}' if total else ''} completions")

        yield advance
