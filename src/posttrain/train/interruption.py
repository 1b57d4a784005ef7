"""Ctrl-C and SIGTERM while a run trains: the step is finished and saved, and the run ends in good order."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState

from posttrain.base.processes import is_main_process
from posttrain.errors import RunInterrupted
from posttrain.runs.directory import RunDirectory
from posttrain.train.ranks import any_rank

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOPPING = b"\nstopping: this step is finished and saved first; once more (Ctrl-C) stops at once\n"


class StopAfterStep(TrainerCallback):
    """Once asked to, ends training after the step under way, with a checkpoint.

    Attributes:
        stopped_at: the step after which training was ended before its time.
    """

    def __init__(self, may_stop_after: Callable[[int], bool]) -> None:
        """`may_stop_after`: whether a run can be resumed after so many steps."""
        self.stopped_at: int | None = None
        self._may_stop_after = may_stop_after
        self._has_trained = False
        self._asked_by: int | None = None

    @property
    def exit_code(self) -> int:
        """What a shell gives for a command that this signal ended."""
        return 128 + (self._asked_by or signal.SIGTERM)

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals: the first one asks, and Ctrl-C after that does not wait.

        SIGTERM may come twice for one request: from a cluster to each process of a job, and from torchrun.
        """
        if self._asked_by is None:
            self._asked_by = number
            if is_main_process():
                # Not by the console: the signal may have come while it was writing. Nobody may be there to read it.
                with suppress(OSError):
                    os.write(2, _STOPPING)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._has_trained = True
        self._stop_if_asked(state, control)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._has_trained:  # after the evaluation at the start the trainer saves nothing
            self._stop_if_asked(state, control)

    def _stop_if_asked(self, state: TrainerState, control: TrainerControl) -> None:
        is_last = state.global_step >= state.max_steps or control.should_training_stop
        if any_rank(self._asked_by is not None) and not is_last and self._may_stop_after(state.global_step):
            self.stopped_at = state.global_step
            control.should_save = control.should_training_stop = True


@contextmanager
def interruptible(trainer: Trainer, run: RunDirectory, may_stop_after: Callable[[int], bool]) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end `trainer.train()` after the step under way.

    Raises:
        RunInterrupted: training was ended so, with a checkpoint of its last step.
    """
    stop = StopAfterStep(may_stop_after)
    trainer.add_callback(stop)
    before = {number: signal.signal(number, stop.ask) for number in _free_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stop.stopped_at is not None:
        step = stop.stopped_at
        raise RunInterrupted(
            f"stopped after step {step}, which is saved in {run.path / f'checkpoint-{step}'}; --resume goes on from it",
            stop.exit_code,
        )


def _free_signals() -> list[signal.Signals]:
    """Those that are not ignored, as Ctrl-C is by a shell's background jobs, or handled by other than Python code."""
    if threading.current_thread() is not threading.main_thread():  # Python lets no other one have handlers
        return []
    return [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
