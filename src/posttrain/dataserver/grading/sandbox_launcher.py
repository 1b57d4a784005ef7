"""Entry point of a sandbox: drop privileges, then run the program.

It is passed to a bare interpreter as text, so it uses only the standard library.
"""

import os
import sys

# Constants of prctl(2) on Linux.
_SIGNAL_WHEN_PARENT_ENDS, _NO_NEW_RIGHTS, _FILTER_CALLS = 1, 38, 22
_BY_STEPS = 2


def main() -> None:
    """Arguments: seconds until an alarm, user id or empty, limits as `NAME=number`, filter in hex, the program."""
    seconds, user, limits, call_filter, program = sys.argv[1:]
    if user:
        _become(int(user))
    # Not imported earlier: packages imported before _become keep a path that the new user may not be able to read.
    import resource
    import signal

    for limit in limits.split():
        name, _, value = limit.partition("=")
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        lowered = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        # If both limits are reached at once, the program is killed, as if somebody else had done it.
        is_time = number == resource.RLIMIT_CPU and lowered != hard
        resource.setrlimit(number, (lowered, lowered + is_time))
    # The process that started this one may be gone before the time is up.
    signal.alarm(int(seconds))
    if call_filter:
        _refuse_calls(bytes.fromhex(call_filter), signal.SIGKILL)
    _run(program)


def _become(user: int) -> None:
    # That user may not be able to enter the interpreter's folders, so open them first and name them by descriptor.
    if os.path.isdir("/proc/self/fd"):
        numbers = {folder: os.open(folder, os.O_RDONLY) for folder in sys.path if os.path.isdir(folder)}
        sys.path[:] = [f"/proc/self/fd/{number}" for number in numbers.values()]
        encodings = sys.modules["encodings"]  # the one package that every interpreter has imported by now
        encodings.__path__ = [f"{folder}/encodings" for folder in sys.path]
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _refuse_calls(steps: bytes, signal_number: int) -> None:
    """Have the kernel refuse calls from here on, and send a signal if the parent process ends."""
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    program = Program(len(steps) // 8, steps)
    for option, value, pointer in (
        (_SIGNAL_WHEN_PARENT_ENDS, signal_number, 0),
        (_NO_NEW_RIGHTS, 1, 0),
        (_FILTER_CALLS, _BY_STEPS, ctypes.addressof(program)),
    ):
        if prctl(option, value, pointer, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option} fails")


def _run(program: str) -> None:
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    exec(compile(program, "program.py", "exec"), module.__dict__)


if __name__ == "__main__":
    main()
