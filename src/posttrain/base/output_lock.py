"""One process at a time for an output: what a command writes is its own until it ends."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.locks import HeldError, Holder, ProcessLock, holder_of
from posttrain.errors import ConfigError


@contextmanager
def own_output(output: Path) -> Iterator[None]:
    """Keep all other processes from writing the file or folder `output` for as long as the block lasts.

    A hidden file beside it is locked meanwhile, and gone afterwards; a process that is killed keeps nobody out.

    Raises:
        ConfigError: another process writes it, told at once; or nothing may be created there.
    """
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(ProcessLock(lock_of(output)))
        except HeldError as error:
            if not (error.holder.pid or lock_of(output).exists()):  # as in /proc
                raise ConfigError(f"{output} cannot be written: no file can be made in its folder") from None
            raise _in_use(output, error.holder) from None
        except OSError as error:
            raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from None
        if not lock.is_enforced:
            console.print(
                f"the file system of {output} has no locks: a second command that writes it is refused for as long as "
                f"the process is alive that {lock_of(output).name} names"
            )
        yield


def require_unowned(output: Path) -> None:
    """Raise ConfigError if another process writes `output`; nothing is created."""
    holder = holder_of(lock_of(output))
    if holder is not None:
        raise _in_use(output, holder)


def written_in(folder: Path) -> Iterator[tuple[str, Holder]]:
    """The names of files and folders in `folder` that processes are writing, and which those are."""
    for lock in folder.glob(".*.lock"):
        if (holder := holder_of(lock)) is not None:
            yield lock.name.removeprefix(".").removesuffix(".lock"), holder


def lock_of(output: Path) -> Path:
    """The file that is locked while `output` is written."""
    absolute = Path(os.path.realpath(output))  # one file, whatever it is called
    return absolute.with_name(f".{absolute.name}.lock")


def _in_use(output: Path, holder: Holder) -> ConfigError:
    hint = f"; if that process is gone, remove {lock_of(output)}" * (not holder.is_certain)
    return ConfigError(
        f"{output} is being written by {holder}; wait for its end, or end it, or give this output another name{hint}"
    )
