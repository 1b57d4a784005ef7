"""The directory of a run, its lock and its file names.

<output_dir>/<name>/
    config.yaml       the resolved config
    manifest.json     versions, hardware, digests of data, template and tokenizer
    metrics.jsonl     one line per optimizer step and evaluation
    ledger.json       what became of every row
    checkpoint-N/     complete checkpoints; `latest` and `best` name one each
    plots/            loss and learning rate
    adapter_*         the trained adapter (or model) and its tokenizer, at the end
    result.json       steps, tokens, losses and speed, at the end
    logs/             what the terminal showed: a file for each attempt
    trackers.json     which runs of trackers a resume continues
    pushed.json       which checkpoints are on a hub (run.push)
    .lock             exists and is locked while a process trains
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from posttrain.base.files import atomic_write_text
from posttrain.base.locks import HeldError, Holder, holder_of, in_use, process_lock, written_in
from posttrain.base.processes import is_main_process
from posttrain.errors import ConfigError


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
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def trackers(self) -> Path:
        return self.path / "trackers.json"

    @property
    def pushed(self) -> Path:
        return self.path / "pushed.json"

    @property
    def trainer_private(self) -> Path:
        """Where the trainer writes a checkpoint before it is moved to its final name."""
        return self.path / ".trainer"

    @property
    def lock(self) -> Path:
        """The file that the training process keeps locked."""
        return self.path / ".lock"

    def write_json(self, path: Path, value: object) -> None:
        """Write `value` so that a reader sees the old file or the whole new one."""
        atomic_write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


@contextmanager
def own_run_directory(run: RunDirectory, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Keep all other processes from training in this folder, and refuse one that this run may not write to.

    If several processes share the run, only the main one does this. The contents of the folder stay as they are.

    Raises:
        ConfigError: as `check_run_directory`, or the folder is not writable.
    """
    if not is_main_process():
        yield
        return
    check_run_directory(run, resume=resume, overwrite=overwrite)
    with ExitStack() as stack:
        try:
            stack.enter_context(process_lock(run.lock))
        except HeldError as error:
            raise _in_use(run, error.holder) from None
        except OSError as error:
            raise ConfigError(f"{run.path} is not writable: {error.strerror}; choose another run.output_dir") from None
        # Check again: another run may have come and gone since.
        _require_room(run, resume=resume, overwrite=overwrite)
        yield


def check_run_directory(run: RunDirectory, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that this run may not write to; nothing is created or removed.

    A folder with nothing but a lock, the trainer's private folder, logs, the names of trackers' runs and unfinished
    files counts as empty: a run that is stopped before it begins leaves just these.

    Raises:
        ConfigError: both `resume` and `overwrite` are given; the folder holds a run and neither is; it is a file or
            holds something other than a run; or a process trains in it, or writes to it when `overwrite` is given.
    """
    if resume and overwrite:
        raise ConfigError("--resume and --overwrite contradict each other; give one of them")
    if (holder := holder_of(run.lock)) is not None:
        raise _in_use(run, holder)
    if overwrite:
        _require_unwritten(run)
    _require_room(run, resume=resume, overwrite=overwrite)


def _require_unwritten(run: RunDirectory) -> None:
    for name, writer in written_in(run.path):
        raise ConfigError(f"{run.path} cannot be replaced: {name} in it is being written by {writer}")


def _in_use(run: RunDirectory, holder: Holder) -> ConfigError:
    instead = "give this run its own name with --run-name"
    return in_use(f"{run.path} is being trained", run.lock, holder, instead)


def _require_room(run: RunDirectory, *, resume: bool, overwrite: bool) -> None:
    path = run.path
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; choose another run.output_dir or --run-name")
    if not path.is_dir() or all(_is_left_behind(run, each) for each in path.iterdir()):
        return
    if not (resume or overwrite):
        raise ConfigError(
            f"a run already exists in {path}; continue it with --resume, replace it with --overwrite, "
            "or give this one its own name with --run-name"
        )
    if not run.manifest.is_file():
        raise ConfigError(f"{path} is not empty, and not a run's folder; choose another --run-name")


def _is_left_behind(run: RunDirectory, path: Path) -> bool:
    """Whether `path` is something that a run killed before it began leaves behind."""
    left = (run.trainer_private, run.lock, run.logs, run.trackers)
    return path in left or (path.name.startswith(".") and path.suffix == ".tmp")


def clear_run_directory(run: RunDirectory, keep: Sequence[Path] = ()) -> None:
    """Empty the folder for a new run, creating it if needed; a lock in it stays, and so does what is in `keep`.

    Raises:
        ConfigError: something in it, such as a merged model, is being written now.
    """
    _require_unwritten(run)
    run.path.mkdir(parents=True, exist_ok=True)
    # Remove the manifest last: while it exists, what a kill leaves is recognised as a run.
    for each in sorted(set(run.path.iterdir()) - {run.lock, *keep}, key=lambda each: each == run.manifest):
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()
