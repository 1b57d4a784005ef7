"""Where the optimizer steps of a run are written down and shown, with what its watchdogs say of them."""

import math
from typing import Any

from posttrain.base.console import TrainingProgress
from posttrain.base.processes import is_main_process
from posttrain.runs.directory import RunDirectory
from posttrain.runs.metrics import append_metrics, read_metrics
from posttrain.train.watchdogs import Watch


class StepLog:
    """metrics.jsonl and the terminal; `write` and `write_evaluation` are for the main process."""

    def __init__(self, run: RunDirectory, progress: TrainingProgress, watch: Watch) -> None:
        self.run = run
        self._progress = progress
        self._watch = watch

    def begin(self, done: int) -> None:
        """Training begins, with so many steps done: the watchdogs see those as they did when they were made."""
        if done and is_main_process():
            for row in read_metrics(self.run.metrics):
                if "loss" in row and row["step"] <= done:
                    self._watch.look(row)
        self._progress.start(done)

    def write(self, row: dict[str, Any], facts: str) -> None:
        """A step: its numbers, with the names of the watchdogs that warn as `warnings`, and `facts` for people."""
        names, lines = self._watch.look(row)
        append_metrics(self.run.metrics, {**row, "warnings": names} if names else row)
        self._progress.step(row, facts)
        for line in lines:
            self._progress.say(line)

    def write_evaluation(self, step: int, values: dict[str, Any], facts: str) -> None:
        """An evaluation after `step` steps; what is not finite is written as null, and told."""
        lost = [name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
        append_metrics(self.run.metrics, {"step": step, **values, **dict.fromkeys(lost)})
        self._progress.say(f"step {step}: {facts}")
        if lost:
            self._progress.say(
                f"warning at step {step}: {', '.join(lost)} is not finite, so no checkpoint is the best by it: look at "
                "the held-out rows; if the loss of training is fine, model.dtype: float32 may help"
            )

    def say(self, text: str) -> None:
        """Show lines that are not written down."""
        self._progress.say(text)

    def end(self) -> None:
        """Training has ended: say what the watchdogs found, and give the terminal back."""
        if (summary := self._watch.summary()) is not None:
            self._progress.say(summary)
        self._progress.stop()
