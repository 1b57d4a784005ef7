"""Read run directories: manifest, config, metrics and result."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config.load import read_raw
from posttrain.errors import ConfigError
from posttrain.runs.directory import RunDirectory
from posttrain.runs.metrics import read_metrics

KINDS = {"toolkit-sft": "sft", "toolkit-dpo": "dpo", "toolkit-rl-train": "rl"}
"""The kind of run that each command makes."""


@dataclass(frozen=True)
class KeptRun:
    """The files of a run.

    Attributes:
        config: config.yaml as plain data, resolved, with all defaults.
        rows: the lines of metrics.jsonl.
        result: result.json; empty if the run has not ended.
    """

    directory: RunDirectory
    manifest: dict[str, Any]
    config: dict[str, Any]
    rows: list[dict[str, Any]]
    result: dict[str, Any]

    @property
    def kind(self) -> str:
        """sft, dpo or rl; ConfigError if this version does not know the run's command."""
        command = self.manifest["command"]
        if command not in KINDS:
            raise ConfigError(f"{self.directory.path} is a run of {command}, which this version does not support")
        return KINDS[command]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The metrics lines of optimizer steps."""
        return [row for row in self.rows if "order_hash" in row]

    @property
    def ledgers(self) -> list[dict[str, Any]]:
        """What became of every row, a ledger for each data set; ConfigError if the file is damaged."""
        path = self.directory.ledger
        try:
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        except ValueError as error:
            raise ConfigError(f"{path} is damaged: {error}") from None


def read_run(path: Path) -> KeptRun:
    """Read the run in a folder.

    Raises:
        ConfigError: there is none, or one of its files is damaged.
    """
    run = RunDirectory(path)
    if not run.manifest.is_file():
        raise ConfigError(f"there is no run in {path}: it has no {run.manifest.name}; give the folder of a run")
    return KeptRun(run, _object(run.manifest), read_raw(run.config), read_metrics(run.metrics), _result(run))


def _result(run: RunDirectory) -> dict[str, Any]:
    return _object(run.result) if run.result.is_file() else {}


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is damaged: it is not a JSON object")
    return value
