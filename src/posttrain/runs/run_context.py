"""A run's folder while it trains: its own, and with whatever goes wrong there told in one message."""

from collections.abc import Iterator
from contextlib import contextmanager

from posttrain.runs.directory import RunDirectory, own_run_directory
from posttrain.runs.lost_ranks import ranks_explained
from posttrain.runs.storage_errors import storage_explained


@contextmanager
def run_context(run: RunDirectory, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Own the folder of a run for as long as the block lasts.

    Raises:
        ConfigError: as `own_run_directory`.
        RunError: as `ranks_explained` and `storage_explained`.
    """
    with own_run_directory(run, resume=resume, overwrite=overwrite), ranks_explained(run), storage_explained(run):
        yield
