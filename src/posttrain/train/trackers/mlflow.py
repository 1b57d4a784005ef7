"""Keeps a run's numbers in MLflow: in a database file, or on a server."""

import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from posttrain.base.secrets import without_passwords
from posttrain.config.sections.trackers import MLflowConfig
from posttrain.runs.manifest import flatten
from posttrain.train.trackers.tracker import End, Kind, Opened, Remembered, TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

_STATUS: Mapping[End, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}

# What MLflow takes as a parameter: names of these characters, values of this length, and so many in one request.
_PARAMETER = re.compile(r"[\w\-./: ]{1,250}")
_LONGEST_VALUE = 500
_PARAMETERS_AT_ONCE = 100


class MLflow:
    """A run of MLflow. A resume asks it which steps it has."""

    def __init__(self, config: MLflowConfig, run: TrackedRun) -> None:
        self._config = config
        self._run = run

    def open(self, remembered: Remembered | None) -> Opened:
        """Start or continue the run."""
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

        self._client = client = MlflowClient(tracking_uri=self._config.uri)
        where = {"uri": without_passwords(client.tracking_uri), "experiment": self._config.experiment}
        if remembered is not None and all(remembered[key] == value for key, value in where.items()):
            self._id = remembered["id"]
            client.update_run(self._id, status="RUNNING")
            last = _last_steps(client, self._id)
        else:
            self._id, last = self._started(client), {}
        place = f"experiment {self._config.experiment}, run {self._id} in {where['uri']}"
        return Opened(place, {**where, "id": self._id}, last)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Write the numbers to the database, or send them."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self, end: End) -> None:
        """Record how the run ended."""
        self._client.set_terminated(self._id, status=_STATUS[end])

    def _started(self, client: "MlflowClient") -> str:
        """The id of a new run, with the config as its parameters."""
        from mlflow.entities import Param  # pyright: ignore[reportMissingImports]

        found = client.get_experiment_by_name(self._config.experiment)
        experiment = found.experiment_id if found is not None else client.create_experiment(self._config.experiment)
        made = client.create_run(experiment, run_name=self._run.name, tags=dict(self._config.tags))
        known = {key: str(value) for key, value in flatten(dict(self._run.config)).items() if _PARAMETER.fullmatch(key)}
        parameters = [Param(key, value[:_LONGEST_VALUE]) for key, value in known.items()]
        for start in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            client.log_batch(made.info.run_id, params=parameters[start : start + _PARAMETERS_AT_ONCE])
        return made.info.run_id


def _last_steps(client: "MlflowClient", run: str) -> dict[Kind, int]:
    """The last step of each kind that MLflow has."""
    kinds: tuple[Kind, ...] = ("train", "eval")
    last: dict[Kind, int] = {}
    names = client.get_run(run).data.metrics
    for kind in kinds:
        name = next((name for name in names if name.startswith(f"{kind}/")), None)
        if name is not None:
            last[kind] = max(metric.step for metric in client.get_metric_history(run, name))
    return last
