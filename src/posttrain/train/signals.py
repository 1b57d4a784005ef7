"""Stop training after the current step on Ctrl-C or SIGTERM."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from posttrain.base.processes import is_main_process
from posttrain.train.parallel import any_rank

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOPPING = b"\nstopping: this step is finished and saved first; once more (Ctrl-C) stops at once\n"


class StopRequest:
    """Whether a signal asked this run to stop."""

    def __init__(self) -> None:
        self._signal: int | None = None

    @property
    def exit_code(self) -> int:
        """What a shell gives for a command that this signal ended."""
        return 128 + (self._signal or signal.SIGTERM)

    def on_any_rank(self) -> bool:
        """Whether a process of the run was asked; all ranks must call it, and all get the same answer."""
        return any_rank(self._signal is not None)

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals: the first one asks, and Ctrl-C after that does not wait.

        SIGTERM may come twice for one request: from a cluster to each process of a job, and from torchrun.
        """
        if self._signal is None:
            self._signal = number
            if is_main_process():
                # Not by the console: the signal may have come while it was writing. Nobody may be there to read it.
                with suppress(OSError):
                    os.write(2, _STOPPING)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within the block, Ctrl-C and SIGTERM ask for a stop; their handlers of before are back after it."""
    request = StopRequest()
    before = {number: signal.signal(number, request.ask) for number in _free_signals()}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_signals() -> list[signal.Signals]:
    """Those that are not ignored, as Ctrl-C is by a shell's background jobs, or handled by other than Python code."""
    if threading.current_thread() is not threading.main_thread():  # Python lets no other one have handlers
        return []
    return [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
