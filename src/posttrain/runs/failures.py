"""Run context that holds the lock, keeps a log, and explains a full disk or a lost process in one message."""

import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from posttrain.base.files import why_unwritten
from posttrain.base.processes import process_count
from posttrain.errors import RunError, ToolkitError
from posttrain.runs.attempt_log import recorded
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory, own_run_directory

# Parts of the errors of Gloo, NCCL and torch's own store in torch 2.13 when the peer is gone or silent.
_LOST_RANK = (
    "closed by peer",
    "reset by peer",
    "timeout caused pair closure",
    "Timed out waiting",
    "remote process exited",
    "communicator was aborted",
    "failed to recv, got 0 bytes",
)


@contextmanager
def run_context(run: RunDirectory, *, resume: bool, overwrite: bool) -> Iterator[None]:
    """Own the folder of a run for the duration of the block, and record what is shown.

    Raises:
        ConfigError: as `own_run_directory`.
        RunError: as `ranks_explained` and `storage_explained`.
    """
    with (
        own_run_directory(run, resume=resume, overwrite=overwrite),
        recorded(),
        ranks_explained(run),
        storage_explained(run),
    ):
        yield


@contextmanager
def ranks_explained(run: RunDirectory) -> Iterator[None]:
    """Turn the error of a process that has lost another process of its run into one message.

    SIGTERM is ignored from then on: torchrun sends it a tenth of a second later, although this process is ending
    anyway, and it would keep the process from closing what it has opened and from reporting the reason.

    Raises:
        RunError: another process of the run ended or no longer responds.
    """
    try:
        yield
    except Exception as error:
        if process_count() == 1 or not lost_a_rank(error):
            raise
        if threading.current_thread() is threading.main_thread():  # only this thread may set signal handlers
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        latest = latest_checkpoint(run)
        again = f"--resume, with {process_count()} processes again,"
        raise RunError(
            f"another of this run's {process_count()} processes ended: it was killed, or its own output says why; "
            + (
                f"no checkpoint had been written, so {again} starts from the beginning"
                if latest is None
                else f"{again} continues from {latest.path.name}, which is complete"
            )
        ) from error


def lost_a_rank(error: BaseException) -> bool:
    """Whether `error`, or an error that caused it, says that another process could not be reached."""
    if isinstance(error, ToolkitError):  # its text is for users and may be about another connection
        return False
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _LOST_RANK):
        return True
    return error.__cause__ is not None and lost_a_rank(error.__cause__)


@contextmanager
def storage_explained(run: RunDirectory) -> Iterator[None]:
    """Turn a failed write into one message that says what is safe and what to do.

    Raises:
        RunError: the disk is full, read-only, or broken.
    """
    try:
        yield
    except Exception as error:
        reason = None if isinstance(error, ToolkitError) else why_unwritten(error)
        if reason is None:
            raise
        there = next(each for each in (run.path, *run.path.parents) if each.exists())
        reason += f"; {shutil.disk_usage(there).free / 2**20:,.0f} MiB are free at {there}"
        latest = latest_checkpoint(run)
        if latest is None:
            way_on = "no checkpoint had been written. Fix that or free space, and start again with --resume"
        else:
            way_on = f"{latest.path.name} is complete. Fix that or free space; --resume then continues from it"
        raise RunError(f"{reason}; {way_on}") from error
