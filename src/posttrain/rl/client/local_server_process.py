"""Entry point of the local dataserver process, which ends when its parent does.

Run as `python -P -m posttrain.rl.client.local_server_process PID ARGUMENTS…`, in a session of its own; PID is the
trainer's.
"""

import os
import signal
import sys
import threading
import time
from importlib.metadata import entry_points

from posttrain.base.guard import wait_for_end_of

_COMMAND = "toolkit-rl-dataserver"
# Time to write the journal; nobody waits for grading that is still under way.
_GRACE_SECONDS = 5.0


def main() -> None:
    """Run the command, found by name because the trainer's part of the package may not import the server's."""
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    sys.argv = [_COMMAND, *sys.argv[2:]]
    (command,) = entry_points(group="console_scripts", name=_COMMAND)
    command.load()()


def _end_with(trainer: int) -> None:
    wait_for_end_of(trainer)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":  # the grading processes import this module again
    main()
