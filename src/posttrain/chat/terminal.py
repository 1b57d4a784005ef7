"""The two ends of a chat: lines from a terminal or a pipe, and answers as they come."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from posttrain.base.console import console
from posttrain.base.text import harmless
from posttrain.errors import DataError

_PROMPT, _MORE = "> ", "… "


class TerminalLines:
    """Lines that a person types, edited with readline where Python has it."""

    def __init__(self) -> None:
        with suppress(ImportError):
            import readline  # noqa: F401  # `input` uses it once it is imported

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                yield _checked(self._typed(_PROMPT))
            except KeyboardInterrupt:
                console.print("")  # Ctrl-C drops what was typed
            except EOFError:
                console.print("")
                return
            except DataError as error:
                console.print(f"error: {error}")

    def edit(self, text: str) -> str:
        """Have the text changed; only its first line can be shown for that."""
        try:
            import readline
        except ImportError:
            return self._typed(_PROMPT)
        readline.set_startup_hook(lambda: readline.insert_text(text.replace("\n", " ")))
        try:
            return self._typed(_PROMPT)
        finally:
            readline.set_startup_hook()

    def _typed(self, prompt: str) -> str:
        lines = [_input(prompt)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(_input(_MORE))
        return "\n".join(lines)


class PipedLines:
    """Lines of a file or a pipe; `number` is that of the last one, from 1."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        lines: list[str] = []
        for raw in sys.stdin.buffer:
            self.number += 1
            try:
                line = raw.decode().rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(f"not UTF-8 at byte {error.start + 1}") from None
            lines.append(line.removesuffix("\\"))
            if not line.endswith("\\"):
                yield "\n".join(lines)
                lines = []
        if lines:
            yield "\n".join(lines)

    def edit(self, text: str) -> str:
        """A pipe cannot edit: DataError."""
        raise DataError("without a terminal, give the new question: /edit TEXT")


class Screen:
    """Shows answers while they come: as text, or in two columns on a terminal."""

    def __init__(self) -> None:
        self._out = Console(highlight=False, markup=False, emoji=False)
        self._columns: list[tuple[str, Text]] = []
        self._live: Live | None = None

    @contextmanager
    def beside(self, is_wanted: bool) -> Iterator[None]:
        """Show the answers within the block beside each other, if that `is_wanted` and stdout is a terminal."""
        if not (is_wanted and self._out.is_terminal):
            yield
            return
        self._columns = []
        try:
            with Live(console=self._out, refresh_per_second=8) as self._live:
                yield
        finally:
            self._live = None

    @contextmanager
    def answer(self, heading: str) -> Iterator[Callable[[str], None]]:
        """Yield what shows the next piece of an answer, below its heading if that is not empty."""
        if self._live is not None:
            text = Text()
            self._columns.append((heading, text))
            yield lambda piece: self._grow(text, piece)
            return
        if heading:
            self._write(f"{heading}\n")
        try:
            yield self._write
        finally:
            self._write("\n")

    def _write(self, piece: str) -> None:
        sys.stdout.write(harmless(piece))
        sys.stdout.flush()

    def _grow(self, text: Text, piece: str) -> None:
        assert self._live is not None
        text.append(harmless(piece))
        table = Table(box=box.SIMPLE_HEAD, expand=True, padding=(0, 1))
        for heading, _ in self._columns:
            table.add_column(heading, ratio=1, overflow="fold")
        table.add_row(*(each for _, each in self._columns))
        self._live.update(table)


@contextmanager
def stopped_by_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C came within the block; a second one raises KeyboardInterrupt."""
    came: list[int] = []

    def notice(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    with _interrupts(notice):
        yield lambda: bool(came)


@contextmanager
def ctrl_c_drops_a_line() -> Iterator[None]:
    """Let Ctrl-C raise a KeyboardInterrupt, which no outer handler counts as the end of the program."""
    with _interrupts(signal.default_int_handler):
        yield


@contextmanager
def _interrupts(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _input(prompt: str) -> str:
    if sys.stdout.isatty():
        return input(prompt)
    console.print(prompt, end="")  # what goes to a file is answers alone
    return input()


def _checked(line: str) -> str:
    try:
        line.encode()
    except UnicodeEncodeError:
        raise DataError("the line is not UTF-8") from None
    return line
