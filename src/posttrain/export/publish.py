"""Make a file in a hidden folder beside its place, and give it its name when it is whole."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from posttrain.base.files import atomic_write_text, fsync_file, why_unwritten
from posttrain.errors import RunError, ToolkitError


@contextmanager
def folder_aside(output: Path) -> Iterator[Path]:
    """A hidden folder beside `output`, removed at the end; what a killed process left is removed at the start.

    No other process may write `output` meanwhile.

    Raises:
        RunError: the disk is full or read-only.
    """
    output = Path(os.path.realpath(output))
    aside = output.with_name(f".{output.name}.new.tmp")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        yield aside
    except Exception as error:
        reason = None if isinstance(error, ToolkitError) else why_unwritten(error)
        if reason is None:
            raise
        raise RunError(f"{output} was not written: {reason}. Fix that or free some space, and try again") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def publish(file: Path, output: Path, beside: Mapping[Path, str | None]) -> None:
    """Rename `file` to `output`, then write the texts in their order; a path without a text is only removed.

    A process that is killed leaves at `output` the earlier file or all of the new one, and never texts about another
    file beside it. All is done when the last text is there.
    """
    fsync_file(file)
    for path in beside:
        path.unlink(missing_ok=True)
    os.replace(file, os.path.realpath(output))  # a link stays one, as with all files that are written
    for path, text in beside.items():
        if text is not None:
            atomic_write_text(path, text)
