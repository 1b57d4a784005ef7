"""A process of a run that ends before the others: they are told by an error of the library that connects them."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from posttrain.base.processes import process_count
from posttrain.errors import RunError, ToolkitError
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory

# What Gloo, NCCL and torch's own store say when the other end is gone or silent, in torch 2.13.
_SIGNS = (
    "closed by peer",
    "reset by peer",
    "timeout caused pair closure",
    "Timed out waiting",
    "remote process exited",
    "communicator was aborted",
    "failed to recv, got 0 bytes",
)


@contextmanager
def ranks_explained(run: RunDirectory) -> Iterator[None]:
    """Turn the error of a process that has lost another one of its run into one message.

    From then on SIGTERM is ignored: torchrun sends it a tenth of a second later, to a process that ends anyway, and it
    would keep that from closing what it has opened and from saying why.

    Raises:
        RunError: another process of the run ended, or does not answer any more.
    """
    try:
        yield
    except Exception as error:
        if process_count() == 1 or not lost_a_rank(error):
            raise
        if threading.current_thread() is threading.main_thread():  # Python lets no other one have a say
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        what = f"another of this run's {process_count()} processes ended: it was killed, or says why itself"
        raise RunError(f"{what}; {_way_on(run)}") from error


def lost_a_rank(error: BaseException) -> bool:
    """Whether another process could not be reached, be it that another error was made of it."""
    if isinstance(error, ToolkitError):  # in words for a person, who may be told of another connection
        return False
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS):
        return True
    return error.__cause__ is not None and lost_a_rank(error.__cause__)


def _way_on(run: RunDirectory) -> str:
    again = f"with {process_count()} processes again"
    latest = latest_checkpoint(run)
    if latest is None:
        return f"no checkpoint had been written, so --resume, {again}, begins anew"
    return f"--resume, {again}, goes on from {latest.path.name}, which is whole"
