"""The folder of the merged model, which is there whole or not at all."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolkit.core.files import atomic_rename_dir, fsync_tree, temporary_sibling
from toolkit.errors import ConfigError


def check_output(output: Path, *, overwrite: bool, inputs: tuple[Path, ...]) -> None:
    """Refuse a folder that a merge may not write to; nothing is created or removed.

    Raises:
        ConfigError: the folder is not empty and `overwrite` was not asked for, or it is or holds an input.
    """
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
    """A folder to write to, which takes the place of `output` at the end of the block, and never if it fails."""
    output.parent.mkdir(parents=True, exist_ok=True)
    aside = temporary_sibling(output)
    aside.mkdir()
    try:
        yield aside
        fsync_tree(aside)
        _replace(output, aside)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _replace(output: Path, aside: Path) -> None:
    if not output.is_dir():
        atomic_rename_dir(aside, output)
        return
    old = temporary_sibling(output)
    atomic_rename_dir(output, old)
    try:
        atomic_rename_dir(aside, output)
    except BaseException:
        atomic_rename_dir(old, output)
        raise
    shutil.rmtree(old)
