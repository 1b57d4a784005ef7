"""The output file: checked early, and written completely or not at all."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from posttrain.base.files import atomic_writer
from posttrain.base.locks import own_output, require_unowned
from posttrain.base.strict_json import json_line
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import FileDataset
from posttrain.errors import ConfigError

Write = Callable[[dict[str, object]], None]


def check_output(output: Path, inputs: Iterable[Path], config: DataserverConfig, *, overwrite: bool) -> None:
    """Refuse a file that may not, or cannot, be written; nothing is created.

    Raises:
        ConfigError: it is one of `inputs` or a data set of the config, it is there and `overwrite` was not asked for,
            or no file can be made there.
    """
    data = [config.data_root / each.path for each in config.datasets.values() if isinstance(each, FileDataset)]
    if any(_is_same(output, path) for path in (*inputs, *data)):
        raise ConfigError(f"{output} is an input; give the output another name")
    if output.is_dir():
        raise ConfigError(f"{output} is a folder; the output is a file: name it, as in graded.jsonl")
    if output.exists() and not overwrite:
        raise ConfigError(f"{output} is there already; choose another name, or replace it with --overwrite")
    existing = next(parent for parent in Path(os.path.realpath(output)).parents if parent.exists())
    if not existing.is_dir():
        raise ConfigError(f"{output} cannot be written: {existing} is a file, not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{output} cannot be written: nothing may be created in {existing}")


@contextmanager
def checked_output(
    output: Path | None, inputs: Sequence[Path], config: DataserverConfig, *, overwrite: bool, dry_run: bool
) -> Iterator[None]:
    """Refuse an output as `check_output` does, and keep all other processes from writing it while the block lasts.

    Raises:
        ConfigError: as `check_output`, or another process writes the output.
    """
    if output is None:
        yield
        return
    check_output(output, inputs, config, overwrite=overwrite)
    if dry_run:
        require_unowned(output)
        yield
        return
    with own_output(output):
        check_output(output, inputs, config, overwrite=overwrite)  # once more: another process may have ended since
        yield


@contextmanager
def output_lines(output: Path | None) -> Iterator[Write]:
    """A function that writes a line, or does nothing if there is no output; the file is there when the block ends.

    Raises:
        ConfigError: no file can be made there.
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
