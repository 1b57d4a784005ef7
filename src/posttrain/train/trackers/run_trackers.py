"""All trackers of a run: which there are, what is kept about them in the run directory, and what failed."""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from posttrain.base.console import console
from posttrain.config.sections.trackers import TrackerConfig, TrackerName
from posttrain.runs.directory import RunDirectory
from posttrain.runs.metrics import read_metrics
from posttrain.train.trackers.mlflow import MLflow
from posttrain.train.trackers.sender import Sender
from posttrain.train.trackers.tensorboard import TensorBoard
from posttrain.train.trackers.tracker import CLOSE_SECONDS, End, Kind, Remembered, TrackedRun
from posttrain.train.trackers.trackio import Trackio
from posttrain.train.trackers.wandb import WandB

TRACKERS: Mapping[TrackerName, Any] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
    "mlflow": MLflow,
}
"""The class of each kind, made from its config and the run."""


class RunTrackers:
    """The trackers of a run, each in a thread of its own; for the main process."""

    def __init__(
        self, configs: Sequence[TrackerConfig], run: RunDirectory, told: TrackedRun, logged: Mapping[Kind, int]
    ) -> None:
        """Start the threads; `logged` are the last steps of metrics.jsonl before a resume, see `last_logged`."""
        self._run = run
        self._remembering = threading.Lock()
        before = self._remembered()
        self._senders = {
            config.kind: Sender(
                config.kind,
                TRACKERS[config.kind](config, told),
                console.print,
                remembered=before.get(config.kind),
                remember=lambda found, kind=config.kind: self._remember(kind, found),
                logged=logged,
            )
            for config in configs
        }

    def log(self, kind: Kind, step: int, values: Mapping[str, Any]) -> None:
        """Send the numbers among `values`, named `kind/name`."""
        numbers = {
            f"{kind}/{name}": value
            for name, value in values.items()
            if isinstance(value, int | float) and name != "step"
        }
        for sender in self._senders.values():
            sender.send(kind, step, numbers)

    def close(self, end: End) -> dict[str, Any]:
        """Wait for the trackers, together for a limited time; returns what failed, by kind."""
        until = time.monotonic() + CLOSE_SECONDS
        closed = {kind: sender.close(end, until) for kind, sender in self._senders.items()}
        return {kind: asdict(failures) for kind, failures in closed.items() if failures is not None}

    def _remembered(self) -> dict[str, Remembered]:
        """What is kept about each tracker; a damaged file counts as absent."""
        try:
            kept = json.loads(self._run.trackers.read_text(encoding="utf-8"))
            return {kind: {key: str(value) for key, value in facts.items()} for kind, facts in kept.items()}
        except (OSError, ValueError, AttributeError):
            return {}

    def _remember(self, kind: str, found: Remembered) -> None:
        with self._remembering:
            self._run.write_json(self._run.trackers, {**self._remembered(), kind: dict(found)})


def last_logged(run: RunDirectory) -> dict[Kind, int]:
    """The last optimizer step, and the step of the last evaluation, in metrics.jsonl."""
    last: dict[Kind, int] = {}
    for row in read_metrics(run.metrics):
        last["train" if "loss" in row else "eval"] = row["step"]
    return last
