"""The first thing that runs in a sandbox: it gives up rights, and then becomes the program.

It is handed to a bare interpreter as text, so it uses the standard library alone.
"""

import os
import sys


def main() -> None:
    """Arguments: seconds until an alarm, user id or nothing, limits as `NAME=number`, the program."""
    seconds, user, limits, program = sys.argv[1:]
    if user:
        _become(int(user))
    # Not above: packages that are imported by now are looked for where the new user may not go.
    import resource
    import signal

    for limit in limits.split():
        name, _, value = limit.partition("=")
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        lowered = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(number, (lowered, lowered))
    # Whoever started this may be gone before the time is over.
    signal.alarm(int(seconds))
    _run(program)


def _become(user: int) -> None:
    # The interpreter may live where that user may not go, so its folders are opened first and named by number.
    if os.path.isdir("/proc/self/fd"):
        numbers = {folder: os.open(folder, os.O_RDONLY) for folder in sys.path if os.path.isdir(folder)}
        sys.path[:] = [f"/proc/self/fd/{number}" for number in numbers.values()]
        encodings = sys.modules["encodings"]  # the one package that every interpreter has imported by now
        encodings.__path__ = [f"{folder}/encodings" for folder in sys.path]
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _run(program: str) -> None:
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    exec(compile(program, "program.py", "exec"), module.__dict__)


if __name__ == "__main__":
    main()
