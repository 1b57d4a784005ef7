"""The folder of one run, and who may write into it.

<output_dir>/<name>/
    config.yaml       the resolved config
    manifest.json     versions, hardware, digests of data, template and tokenizer
    metrics.jsonl     one line per optimizer step and evaluation
    ledger.json       what became of every row
    checkpoint-N/     complete checkpoints; `latest` and `best` name one each
    plots/            loss and learning rate
    adapter_*         the trained adapter (or model) and its tokenizer, at the end
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from toolkit.core.files import atomic_write_text
from toolkit.errors import ConfigError


@dataclass(frozen=True)
class RunDirectory:
    """Paths inside a run's folder."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.json"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    @property
    def trainer_private(self) -> Path:
        """Where the trainer writes a checkpoint before it is moved to its final name."""
        return self.path / ".trainer"

    def write_json(self, path: Path, value: object) -> None:
        """Write `value` so that a reader sees the old file or the whole new one."""
        atomic_write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def check_run_directory(run: RunDirectory, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that this run may not write to; nothing is created or removed.

    A folder that has nothing but the trainer's own is empty: that is what is left where a run was stopped before it
    began.

    Raises:
        ConfigError: the folder holds a run and neither `resume` nor `overwrite` was asked for.
    """
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite contradict each other; give one of them")
    path = run.path
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; choose another run.output_dir or --run-name")
    if not path.is_dir() or all(each == run.trainer_private for each in path.iterdir()):
        return
    if not (resume or overwrite):
        raise ConfigError(
            f"there is a run in {path} already; go on with it by --resume, replace it by --overwrite, "
            "or give this one a name of its own by --run-name"
        )
    if not run.manifest.is_file():
        raise ConfigError(f"{path} is not empty, and not a run's folder; choose another --run-name")


def clear_run_directory(run: RunDirectory) -> None:
    """Make an empty folder for a new run, in place of the old run's if there is one."""
    if run.path.is_dir():
        shutil.rmtree(run.path)
    run.path.mkdir(parents=True)
