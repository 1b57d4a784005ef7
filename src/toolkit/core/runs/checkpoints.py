"""Checkpoints that are complete or not there at all.

The trainer writes into a private folder. A finished checkpoint gets a file that lists its files and their
sizes, is flushed to disk, and is renamed to `checkpoint-N`; only then do `latest` and `best` point to it, and
only then are older ones removed.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.core.files import atomic_rename_dir, atomic_write_text, fsync_tree
from toolkit.core.runs.directory import RunDirectory
from toolkit.errors import ConfigError

STATE_FILE = "toolkit_state.json"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its step, its folder, and the state that the toolkit keeps beside the trainer's."""

    step: int
    path: Path
    state: dict[str, Any]


def publish(run: RunDirectory, step: int, state: dict[str, Any]) -> Checkpoint:
    """Move the trainer's `checkpoint-<step>` to its final place and point `latest` to it."""
    private = run.trainer_private / f"checkpoint-{step}"
    files = {str(file.relative_to(private)): file.stat().st_size for file in private.rglob("*") if file.is_file()}
    atomic_write_text(private / STATE_FILE, json.dumps({**state, "files": files}))
    fsync_tree(private)
    final = run.path / private.name
    if final.exists():  # the same step again, after a resume from an older checkpoint
        shutil.rmtree(final)
    atomic_rename_dir(private, final)
    atomic_write_text(run.path / "latest", final.name)
    return Checkpoint(step, final, state)


def complete_checkpoints(run: RunDirectory) -> list[Checkpoint]:
    """Every checkpoint whose files are all there in full, oldest first."""
    found = [_read(path) for path in run.path.glob("checkpoint-*")]
    return sorted((checkpoint for checkpoint in found if checkpoint), key=lambda checkpoint: checkpoint.step)


def latest_checkpoint(run: RunDirectory) -> Checkpoint | None:
    """The newest complete checkpoint, if any."""
    complete = complete_checkpoints(run)
    return complete[-1] if complete else None


def find_checkpoint(run: RunDirectory, wanted: str) -> Checkpoint:
    """The complete checkpoint that a user named by its step, or by `latest`.

    Raises:
        ConfigError: there is none of that step; the message lists those that are there.
    """
    complete = complete_checkpoints(run)
    if not complete:
        raise ConfigError(f"there is no complete checkpoint in {run.path}")
    if wanted == "latest":
        return complete[-1]
    found = {str(checkpoint.step): checkpoint for checkpoint in complete}
    if wanted not in found:
        raise ConfigError(f"--checkpoint {wanted}: there is none of that step; there are: {', '.join(found)}")
    return found[wanted]


def best_checkpoint(run: RunDirectory) -> Path | None:
    """The checkpoint with the lowest validation loss so far, if one was marked."""
    pointer = run.path / "best"
    path = run.path / pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else None
    return path if path and path.is_dir() else None


def mark_best(run: RunDirectory, checkpoint: Checkpoint) -> None:
    """Point `best` to `checkpoint`."""
    atomic_write_text(run.path / "best", checkpoint.path.name)


def rotate(run: RunDirectory, keep: int) -> None:
    """Remove all but the `keep` newest complete checkpoints and the best one."""
    best = best_checkpoint(run)
    for checkpoint in complete_checkpoints(run)[:-keep]:
        if checkpoint.path != best:
            shutil.rmtree(checkpoint.path)


def discard_unfinished(run: RunDirectory, after_step: int) -> None:
    """Remove what a killed run left half-written, and checkpoints of steps that will be trained again."""
    shutil.rmtree(run.trainer_private, ignore_errors=True)
    complete = {checkpoint.path for checkpoint in complete_checkpoints(run) if checkpoint.step <= after_step}
    for path in run.path.glob("checkpoint-*"):
        if path not in complete:
            shutil.rmtree(path)
    newest = latest_checkpoint(run)
    if newest is not None:
        atomic_write_text(run.path / "latest", newest.path.name)
    if best_checkpoint(run) is None:
        (run.path / "best").unlink(missing_ok=True)


def _read(path: Path) -> Checkpoint | None:
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        step = int(path.name.removeprefix("checkpoint-"))
    except (OSError, ValueError):
        return None
    files = state.pop("files", {})
    whole = all((path / name).is_file() and (path / name).stat().st_size == size for name, size in files.items())
    return Checkpoint(step, path, state) if whole else None
