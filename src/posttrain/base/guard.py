"""Run a command that ends with the process that wanted it: python -P -m posttrain.base.guard PID COMMAND…

PID is the guard's parent, which starts it in a session of its own. The command's output is passed on without the
secrets of the environment. The guard ends with the command's exit code, and with it ends whatever the command started.
"""

import os
import signal
import subprocess
import sys
import threading
import time

from posttrain.base.secrets import known_secrets, without_secrets

_SECONDS_BETWEEN_LOOKS = 0.2
_GRACE_SECONDS = 10.0


def guarded(command: list[str]) -> list[str]:
    """The command that runs `command` under a guard of this process; start it with `start_new_session=True`."""
    return [sys.executable, "-P", "-m", "posttrain.base.guard", str(os.getpid()), *command]


def wait_for_end_of(parent: int) -> None:
    """Return once `parent` is no longer this process's parent."""
    # Linux can signal a parent's death, but does so as soon as the thread that started this process ends.
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def main() -> None:
    """Start the command, and end its session when it ends, when the parent does, or when a signal says so."""
    signal.signal(signal.SIGTERM, _ignore)  # a handler, because the command would inherit SIG_IGN
    child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=_end_with, args=(int(sys.argv[1]), child), daemon=True).start()
    output = threading.Thread(target=_pass_on, args=(child,), daemon=True)
    output.start()
    code = child.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # what the command left running
    output.join(_GRACE_SECONDS)
    sys.exit(code if code >= 0 else 128 - code)


def _ignore(*_: object) -> None:
    """The signal arrived before there was a command to end."""


def _pass_on(child: "subprocess.Popen[bytes]") -> None:
    assert child.stdout is not None
    secrets = known_secrets()
    for line in child.stdout:
        os.write(1, without_secrets(line.decode("utf-8", "replace"), secrets).encode())


def _end_with(parent: int, child: "subprocess.Popen[bytes]") -> None:
    wait_for_end_of(parent)
    child.terminate()
    time.sleep(_GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
