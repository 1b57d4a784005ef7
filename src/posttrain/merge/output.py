"""The folder of the merged model, which is there whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posttrain.base.disk_errors import why_unwritten
from posttrain.base.files import atomic_rename_dir, fsync_tree
from posttrain.errors import ConfigError, RunError, ToolkitError


def check_output(output: Path, *, overwrite: bool, inputs: tuple[Path, ...]) -> None:
    """Refuse a folder that a merge may not write to; nothing is created or removed.

    Raises:
        ConfigError: the folder is not empty and `overwrite` was not asked for, or it is or holds an input.
    """
    if output.is_symlink():  # what it leads to would be replaced, which nobody has named
        raise ConfigError(f"--output: {output} is a link; give the folder itself")
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output: {output} is a file; give a folder")
    resolved = output.resolve()
    for path in inputs:
        if path.resolve().is_relative_to(resolved):
            raise ConfigError(f"--output: {output} holds what is to be merged; give another folder")
    if output.is_dir() and any(output.iterdir()) and not overwrite:
        raise ConfigError(
            f"there is something in {output} already; replace it by --overwrite, or give another --output"
        )


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to write to, which takes the place of `output` at the end of the block, and never if it fails.

    No other process may write `output` meanwhile: what one left that was killed is removed.

    Raises:
        RunError: the disk is full.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    aside, old = (output.with_name(f".{output.name}.{kind}.tmp") for kind in ("new", "old"))
    if old.exists() and not output.exists():  # a kill came between the two renames
        atomic_rename_dir(old, output)
    for left in (aside, old):
        if left.exists():
            shutil.rmtree(left)
    aside.mkdir()
    try:
        yield aside
        fsync_tree(aside)
        _replace(output, aside, old)
    except Exception as error:
        reason = None if isinstance(error, ToolkitError) else why_unwritten(error)
        if reason is None:
            raise
        raise RunError(
            f"{output} was not written: {reason}; nothing of it is left. Make room, and start again"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _replace(output: Path, aside: Path, old: Path) -> None:
    if not output.is_dir():
        atomic_rename_dir(aside, output)
        return
    atomic_rename_dir(output, old)
    try:
        atomic_rename_dir(aside, output)
    except BaseException:
        if not output.is_dir():  # an interrupt may come when it is there already
            atomic_rename_dir(old, output)
        raise
    shutil.rmtree(old)
