"""Log each step to metrics.jsonl, the terminal and trackers."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from posttrain.base.console import TrainingProgress
from posttrain.base.processes import is_main_process
from posttrain.errors import RunInterrupted
from posttrain.runs.directory import RunDirectory
from posttrain.runs.manifest import add_to_manifest
from posttrain.runs.metrics import append_metrics, read_metrics
from posttrain.train.trackers.run_trackers import RunTrackers
from posttrain.train.trackers.tracker import End
from posttrain.train.watchdogs import Watch


class StepLog:
    """Writes and shows steps and evaluations; `write` and `write_evaluation` are for the main process."""

    def __init__(
        self, run: RunDirectory, progress: TrainingProgress, watch: Watch, trackers: RunTrackers | None = None
    ) -> None:
        self.run = run
        self._progress = progress
        self._watch = watch
        self._trackers = trackers

    @contextmanager
    def showing(self, done: int) -> Iterator[None]:
        """Show progress within the block, which begins after `done` steps.

        The watchdogs see those steps again, as when they were run.
        """
        if done and is_main_process():
            for row in read_metrics(self.run.metrics):
                if "loss" in row and row["step"] <= done:
                    self._watch.look(row)
        self._progress.start(done)
        end: End = "failed"
        try:
            yield
            end = "finished"
            if (summary := self._watch.summary()) is not None:
                self._progress.say(summary)
        except (RunInterrupted, KeyboardInterrupt):
            end = "stopped"
            raise
        finally:
            self._progress.stop()
            self._close_trackers(end)

    def write(self, row: dict[str, Any], facts: str) -> None:
        """Log a step: its numbers, with the names of the watchdogs that warn as `warnings`; show `facts`."""
        names, lines = self._watch.look(row)
        append_metrics(self.run.metrics, {**row, "warnings": names} if names else row)
        if self._trackers is not None:
            self._trackers.log("train", row["step"], row)
        self._progress.step(row, facts)
        for line in lines:
            self._progress.say(line)

    def write_evaluation(self, step: int, values: Mapping[str, Any], facts: str) -> None:
        """Log an evaluation after `step` steps; values that are not finite are written as null and reported."""
        lost = [name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
        append_metrics(self.run.metrics, {"step": step, **values, **dict.fromkeys(lost)})
        if self._trackers is not None:
            self._trackers.log("eval", step, {name.removeprefix("eval_"): value for name, value in values.items()})
        self._progress.say(f"step {step}: {facts}")
        if lost:
            self._progress.say(
                f"warning at step {step}: {', '.join(lost)} is not finite, so this evaluation cannot select the best "
                "checkpoint: look at the held-out rows; if the training loss is fine, model.dtype: float32 may help"
            )

    def has_evaluation(self, step: int, measure: str) -> bool:
        """Whether metrics.jsonl, as this rank sees it, has an evaluation of `measure` after `step` steps."""
        return any(row["step"] == step and f"eval_{measure}" in row for row in read_metrics(self.run.metrics))

    def say(self, text: str) -> None:
        """Show text without writing it to metrics.jsonl."""
        self._progress.say(text)

    def _close_trackers(self, end: End) -> None:
        """Close the trackers; the manifest then says what they failed at."""
        failures = {} if self._trackers is None else self._trackers.close(end)
        if failures:
            with suppress(OSError):  # it has been told, and must not hide how training ended
                add_to_manifest(self.run, tracker_failures=failures)
