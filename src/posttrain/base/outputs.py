"""Write a file of lines: refused where it must not be, locked while it is written, complete or not there at all."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from posttrain.base.files import atomic_writer
from posttrain.base.locks import own_output, require_unowned
from posttrain.base.strict_json import json_line
from posttrain.errors import ConfigError

Write = Callable[[dict[str, object]], None]


def check_output(output: Path, inputs: Collection[Path], *, overwrite: bool) -> None:
    """Refuse an output that must not or cannot be written; nothing is created.

    Raises:
        ConfigError: it is one of `inputs`, it exists and `overwrite` is false, or no file can be created there.
    """
    if any(_is_same(output, path) for path in inputs):
        raise ConfigError(f"{output} is an input; give the output another name")
    if output.is_dir():
        raise ConfigError(f"{output} is a folder; the output must be a file, e.g. {output / 'rows.jsonl'}")
    if output.exists() and not overwrite:
        raise ConfigError(f"{output} already exists; choose another name, or replace it with --overwrite")
    _require_room(output, Path(os.path.realpath(output)).parent)


def check_output_folder(output: Path) -> None:
    """Refuse a folder of outputs that cannot be written; nothing is created.

    Raises:
        ConfigError: it is a file, or no file can be created there.
    """
    _require_room(output, Path(os.path.realpath(output)))


def _require_room(output: Path, folder: Path) -> None:
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    if not existing.is_dir():
        raise ConfigError(f"{output} cannot be written: {existing} is a file, not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{output} cannot be written: no file can be created in {existing}")


@contextmanager
def checked_output(
    output: Path | None, inputs: Collection[Path], *, overwrite: bool, dry_run: bool = False
) -> Iterator[None]:
    """Refuse an output as `check_output` does, and lock it against other processes while the block lasts.

    A dry run takes no lock; it only refuses an output that is locked.

    Raises:
        ConfigError: as `check_output`, or another process is writing the output.
    """
    if output is None:
        yield
        return
    check_output(output, inputs, overwrite=overwrite)
    if dry_run:
        require_unowned(output)
        yield
        return
    with own_output(output):
        check_output(output, inputs, overwrite=overwrite)  # again: another process may have written it since
        yield


@contextmanager
def output_lines(output: Path | None) -> Iterator[Write]:
    """A function that writes a line, or does nothing if there is no output; the file appears when the block ends.

    Raises:
        ConfigError: no file can be created there.
    """
    if output is None:
        yield lambda line: None
        return
    with ExitStack() as stack:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(atomic_writer(output))
        except OSError as error:
            raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from None
        yield lambda line: file.writelines((json_line(line),))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
