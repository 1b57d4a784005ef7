"""Checks of a run that need no heavy import."""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from posttrain.base.files import nearest_name
from posttrain.base.text import as_shown, as_url
from posttrain.config.sections.datasets import PathConfig
from posttrain.config.sections.optim.optimizers import OPTIMIZERS, OwnOptimizer
from posttrain.config.sections.run import RunConfig, require_run_name
from posttrain.config.sections.training import TrainingConfig
from posttrain.data.readers.data_files import find_files, find_remote
from posttrain.errors import ConfigError, DataError


def choose_run_name(given: str | None, run: RunConfig, config: Path) -> str:
    """The name after `--run-name`, else the config's own, else that of its file; ConfigError if it cannot be one."""
    name = run.name or config.stem if given is None else given
    try:
        return require_run_name(name)
    except ConfigError as error:
        where = (
            "--run-name" if given is not None else "the config file's name is the run's, unless --run-name gives one"
        )
        raise ConfigError(f"{where}: {error}") from None


def require_room_for_run(run: RunConfig) -> None:
    """Raise ConfigError where no folder can be made in `run.output_dir`, or a tracker is not installed."""
    there = next(folder for folder in (run.output_dir, *run.output_dir.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise ConfigError(f"run.output_dir: {as_shown(there)} is a file, so no run can be kept in it; name a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"run.output_dir: {as_shown(there)} is not writable; name another folder")
    missing = [tracker.kind for tracker in run.trackers if find_spec(tracker.kind) is None]
    if missing:
        raise ConfigError(
            f"run.trackers: not installed here: {', '.join(missing)}; pip install "
            f"'posttrain-toolkit[{','.join(missing)}]', or take it out"
        )


def require_optimizer(training: TrainingConfig) -> None:
    """Raise ConfigError where the optimizer's package is not installed."""
    if isinstance(training.optimizer, OwnOptimizer):
        return
    package = OPTIMIZERS[training.optimizer].package
    if package != "torch" and find_spec(package) is None:
        needed = package + " and a CUDA device" * (package == "bitsandbytes")
        raise ConfigError(
            f"training.optimizer: {training.optimizer} needs {needed}: pip install {package}, or set it to adamw"
        )


def require_data_files(sources: Mapping[str, PathConfig]) -> None:
    """Raise one DataError for all files that are not there; `sources` are the data sets by their keys in the config.

    Stores are asked for what they have, but nothing is downloaded.
    """
    problems = []
    for key, source in sources.items():
        path, url = Path(source.path), as_url(source.path)
        if url is None and not path.is_absolute():
            continue  # a hub's id: what is meant as a local path is absolute once a config is loaded
        try:
            if url is None:
                find_files(path, prose=True)
            else:
                find_remote(url, prose=True)
        except DataError as error:
            problems.append(f"{key}.path: {error}{nearest_name(path) if url is None else ''}")
    if problems:
        raise DataError("\n  ".join([f"{len(problems)} files cannot be read:"] * (len(problems) > 1) + problems))
