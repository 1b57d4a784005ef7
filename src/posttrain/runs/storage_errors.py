"""A disk that takes no more: what was lost, which is nothing that was there before, and what to do."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from posttrain.base.disk_errors import why_unwritten
from posttrain.errors import RunError, ToolkitError
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory


@contextmanager
def storage_explained(run: RunDirectory) -> Iterator[None]:
    """Turn a failed write into one message.

    Raises:
        RunError: the disk is full, read-only, or broken.
    """
    try:
        yield
    except Exception as error:
        reason = None if isinstance(error, ToolkitError) else why_unwritten(error)
        if reason is None:
            raise
        raise RunError(f"{reason}; {_way_on(run)}") from error


def _way_on(run: RunDirectory) -> str:
    there = next(each for each in (run.path, *run.path.parents) if each.exists())
    free = f"{shutil.disk_usage(there).free / 2**20:,.0f} MiB are free at {there}"
    latest = latest_checkpoint(run)
    if latest is None:
        return f"{free}; no checkpoint had been written. Mend that, or make room, and start again with --resume"
    return f"{free}; {latest.path.name} is complete. Mend that, or make room, and --resume goes on from it"
