"""Write and find checkpoints with digests, each of them either complete or absent.

The trainer writes into a private folder. A finished checkpoint gets a file that lists its files with their sizes and
digests, is flushed to disk, and is renamed to `checkpoint-N`; only then do `latest` and `best` point to it, and only
then are older ones removed.
"""

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.base.files import atomic_rename_dir, atomic_write_text, content_digest, fsync_file, fsync_tree
from posttrain.errors import ConfigError
from posttrain.runs.directory import RunDirectory

STATE_FILE = "toolkit_state.json"
FORMAT = 3
"""Version of the checkpoint format; checkpoints of other formats cannot be resumed."""
Recorded = Mapping[str, Mapping[str, Any]]
"""Size and digest of each file of a folder, by path relative to the folder."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its step, its folder, the toolkit's own state, and its format."""

    step: int
    path: Path
    state: dict[str, Any]
    format: int


@dataclass(frozen=True)
class Damaged:
    """A checkpoint that is not as it was written, and the reason."""

    path: Path
    reason: str


def publish(run: RunDirectory, step: int, state: dict[str, Any]) -> Checkpoint:
    """Move the trainer's `checkpoint-<step>` to its final place and point `latest` to it.

    A complete checkpoint of that step that already exists is kept: it is from the same run, so it is identical.
    """
    private = run.trainer_private / f"checkpoint-{step}"
    final = run.path / private.name
    if isinstance(there := _read(final), Checkpoint):
        shutil.rmtree(private)
        return there
    atomic_write_text(private / STATE_FILE, json.dumps({"format": FORMAT, **state, "files": record_files(private)}))
    fsync_tree(private)
    for log in run.path.glob("*.jsonl"):  # so a checkpoint that survives a power cut has the lines of its steps
        fsync_file(log)
    if final.exists():
        _remove(run, final)
    atomic_rename_dir(private, final)
    atomic_write_text(run.path / "latest", final.name)
    return Checkpoint(step, final, state, FORMAT)


def complete_checkpoints(run: RunDirectory) -> list[Checkpoint]:
    """Every checkpoint whose files all exist with their full size, oldest first; their contents are not read."""
    found = [_read(path) for path in _folders(run)]
    return sorted((each for each in found if isinstance(each, Checkpoint)), key=lambda checkpoint: checkpoint.step)


def latest_checkpoint(run: RunDirectory) -> Checkpoint | None:
    """The newest complete checkpoint, if any."""
    complete = complete_checkpoints(run)
    return complete[-1] if complete else None


def newest_sound_checkpoint(run: RunDirectory) -> tuple[Checkpoint | None, tuple[Damaged, ...]]:
    """The newest checkpoint whose every byte is as written, and the damaged checkpoints, newest first.

    For checkpoints older than the sound one, only file sizes are checked.
    """
    sound: Checkpoint | None = None
    damaged = []
    for path in sorted(_folders(run), key=_step_of, reverse=True):
        found = _read(path, contents=sound is None)
        if isinstance(found, Damaged):
            damaged.append(found)
        else:
            sound = sound or found
    return sound, tuple(damaged)


def read_state(path: Path) -> dict[str, Any]:
    """The contents of the state file of a complete checkpoint."""
    return json.loads((path / STATE_FILE).read_text(encoding="utf-8"))


def find_checkpoint(run: RunDirectory, wanted: str) -> Checkpoint:
    """The complete checkpoint that a user named by its step, or as `latest`.

    Raises:
        ConfigError: there is none of that step (the message lists the existing ones), or a byte of it changed.
    """
    complete = complete_checkpoints(run)
    if not complete:
        raise ConfigError(f"there is no complete checkpoint in {run.path}")
    by_step = {str(checkpoint.step): checkpoint for checkpoint in complete}
    if wanted != "latest" and wanted not in by_step:
        raise ConfigError(f"--checkpoint {wanted}: no checkpoint at that step; available: {', '.join(by_step)}")
    found = _read((complete[-1] if wanted == "latest" else by_step[wanted]).path, contents=True)
    if isinstance(found, Damaged):
        others = ", ".join(name for name in by_step if name != str(_step_of(found.path)))
        raise ConfigError(f"{found.path} is damaged: {found.reason}; other available steps: {others or 'none'}")
    return found


def best_checkpoint(run: RunDirectory, *, contents: bool = False) -> Path | None:
    """The checkpoint with the best evaluation so far, if marked and complete; `contents` also checks every byte."""
    pointer = run.path / "best"
    path = run.path / pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else None
    return path if path and isinstance(_read(path, contents=contents), Checkpoint) else None


def mark_best(run: RunDirectory, checkpoint: Checkpoint) -> None:
    """Point `best` to `checkpoint`."""
    atomic_write_text(run.path / "best", checkpoint.path.name)


def rotate(run: RunDirectory, keep: int, spared: Collection[int] = ()) -> None:
    """Remove all but the `keep` newest complete checkpoints, the best one, and those of the steps in `spared`."""
    best = best_checkpoint(run)
    for checkpoint in complete_checkpoints(run)[:-keep]:
        if checkpoint.path != best and checkpoint.step not in spared:
            _remove(run, checkpoint.path)


def discard_unfinished(run: RunDirectory, after_step: int) -> None:
    """Remove what a killed run left half-written, and make `latest` and `best` point to complete checkpoints.

    Damaged checkpoints, and all those after `after_step`, are renamed to `damaged-checkpoint-N`.
    """
    shutil.rmtree(run.trainer_private, ignore_errors=True)
    for unfinished in run.path.glob(".*.tmp"):
        if not unfinished.is_dir():  # a folder may belong to a merge in progress
            unfinished.unlink()
    for path in list(_folders(run)):
        if isinstance(_read(path), Damaged) or _step_of(path) > after_step:
            aside = path.with_name(f"damaged-{path.name}")
            if aside.exists():
                _remove(run, aside)
            atomic_rename_dir(path, aside)
    complete = complete_checkpoints(run)
    if complete:
        atomic_write_text(run.path / "latest", complete[-1].path.name)
    # A kill may have come between saving a checkpoint and marking it; the last one saved as the best still is the best.
    best = [each for each in complete if each.state.get("is_best")]
    if best:
        mark_best(run, best[-1])
    elif best_checkpoint(run) is None:
        (run.path / "best").unlink(missing_ok=True)


def _remove(run: RunDirectory, folder: Path) -> None:
    """Remove a folder so that a kill leaves nothing that looks like a damaged checkpoint."""
    run.trainer_private.mkdir(exist_ok=True)
    doomed = run.trainer_private / f"old-{folder.name}"
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def _folders(run: RunDirectory) -> Iterator[Path]:
    return (path for path in run.path.glob("checkpoint-*") if path.is_dir() and _step_of(path) >= 0)


def _step_of(path: Path) -> int:
    step = path.name.removeprefix("checkpoint-")
    return int(step) if step.isdecimal() else -1


def _read(path: Path, *, contents: bool = False) -> Checkpoint | Damaged:
    try:
        state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        recorded: Recorded = state.pop("files")
        written_as = state.pop("format", 1)
        faults = list(file_faults(path, recorded, contents=contents))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Damaged(path, f"{STATE_FILE} is missing or damaged")
    return Damaged(path, "; ".join(faults)) if faults else Checkpoint(_step_of(path), path, state, written_as)


def record_files(folder: Path) -> Recorded:
    """Size in bytes and digest (BLAKE2b) of each file under `folder`, by path relative to it."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    with ThreadPoolExecutor() as threads:  # hashing releases the GIL
        digests = list(threads.map(content_digest, files))
    return {
        str(file.relative_to(folder)): {"bytes": file.stat().st_size, "blake2b": digest}
        for file, digest in zip(files, digests, strict=True)
    }


def file_faults(folder: Path, recorded: Recorded, *, contents: bool) -> Iterator[str]:
    """What is wrong with the files of `folder`, a few words per file; nothing if all are as recorded.

    Args:
        contents: compare their digests too, not only their sizes.
    """
    with ThreadPoolExecutor() as threads:
        found = threads.map(lambda each: _fault(folder / each[0], each[1], contents=contents), recorded.items())
        for name, fault in zip(recorded, found, strict=True):
            if fault is not None:
                yield f"{name} {fault}"


def _fault(file: Path, facts: Mapping[str, Any], *, contents: bool) -> str | None:
    size, digest = facts["bytes"], facts["blake2b"]
    if not file.is_file():
        return "is missing"
    try:
        if file.stat().st_size != size:
            return f"has {file.stat().st_size:,} bytes instead of {size:,}"
        return "is not what was written (its digest differs)" if contents and content_digest(file) != digest else None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
