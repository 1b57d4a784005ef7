"""Stop training after the current step on Ctrl-C or SIGTERM."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from posttrain.base.processes import is_main_process
from posttrain.train.parallel.ranks import any_rank

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOPPING = b"\nstopping: this step is finished and saved first; press Ctrl-C again to stop at once\n"


class StopRequest:
    """Whether a signal asked this run to stop."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self.asked_at: float | None = None
        """When this process was asked, a reading of `time.monotonic`; None if it was not."""

    @property
    def exit_code(self) -> int:
        """The exit code that a shell gives for a command ended by this signal."""
        return 128 + (self._signal or signal.SIGTERM)

    def on_any_rank(self) -> bool:
        """Whether any process of the run was asked; all ranks must call it, and all get the same answer."""
        return any_rank(self._signal is not None)

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: the first signal requests a stop, and Ctrl-C after that stops at once.

        SIGTERM may come twice for one request: from a cluster to each process of a job, and from torchrun.
        """
        if self._signal is None:
            self._signal, self.asked_at = number, time.monotonic()
            if is_main_process():
                # Not through the console, which the signal may have interrupted while writing. stderr may have no
                # reader.
                with suppress(OSError):
                    os.write(2, _STOPPING)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within the block, Ctrl-C and SIGTERM request a stop; afterwards the previous handlers are restored."""
    request = StopRequest()
    before = {number: signal.signal(number, request.ask) for number in _free_signals()}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_signals() -> list[signal.Signals]:
    """Signals that are neither ignored, as Ctrl-C is in a shell's background jobs, nor handled outside Python."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        return []
    return [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
