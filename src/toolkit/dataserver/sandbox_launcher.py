"""The first thing that runs in a sandbox: it gives up rights, and then becomes the program.

It is handed to a bare interpreter as text, so it uses the standard library alone.
"""

import os
import resource
import signal
import sys
from types import ModuleType


def main() -> None:
    """Arguments: seconds until an alarm, user id or nothing, limits as `NAME=number`, the program."""
    seconds, user, limits, program = sys.argv[1:]
    if user:
        _become(int(user))
    for limit in limits.split():
        name, _, value = limit.partition("=")
        _lower(getattr(resource, name), int(value))
    # Whoever started this may be gone before the time is over.
    signal.alarm(int(seconds))
    run(program)


def run(program: str) -> None:
    """Run the program as if it were a file of its own."""
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    exec(compile(program, "program.py", "exec"), module.__dict__)


def _become(user: int) -> None:
    # The interpreter may live where that user may not go, so its folders are opened first and named by number.
    if os.path.isdir("/proc/self/fd"):
        folders = [os.open(folder, os.O_RDONLY) for folder in sys.path if os.path.isdir(folder)]
        sys.path[:] = [f"/proc/self/fd/{number}" for number in folders]
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    main()
