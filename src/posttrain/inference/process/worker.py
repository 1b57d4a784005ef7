"""Entry point of an engine process: it carries out one command after another, and ends when its parent does.

Run as `python -P -m posttrain.inference.process.worker FD PID`: the number of the open connection to the parent, and
the parent's process id.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from posttrain.base.guard import wait_for_end_of
from posttrain.errors import ToolkitError
from posttrain.inference.engine import Completer, Engine, FinishedCompletions, RolloutEngine, Sampling
from posttrain.inference.process.messages import (
    Message,
    completion_arrays,
    lists_as_arrays,
    read_completions,
    read_requests,
    read_rows,
    receive,
    send,
)


def main() -> None:
    """Serve the parent until it closes the connection."""
    # Signals to a whole process group or job are the trainer's business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection, commands = Connection(int(sys.argv[1])), SimpleQueue[Message]()
    threading.Thread(target=_read, args=(connection, commands), daemon=True).start()
    threading.Thread(target=_end_with, args=(int(sys.argv[2]),), daemon=True).start()
    try:
        serve(connection, commands.get)
    finally:  # it ends by an error only
        traceback.print_exc()
        os._exit(1)


def serve(connection: Connection, next_command: Callable[[], Message]) -> None:
    """Answer commands, each with `done`, or with `failed` and the message of a ToolkitError.

    Completions are sent before that, each in a `made` of its own when it has ended.
    """
    engine: Completer | None = None
    while True:
        command = next_command()
        try:
            if command.kind == "open":
                from posttrain.inference.process.specs import open_spec

                engine = open_spec(command.facts)
                send(connection, Message("done"))
            else:
                assert engine is not None
                _COMMANDS[command.kind](engine, command, connection)
        except ToolkitError as error:
            send(connection, Message("failed", {"error": type(error).__name__, "message": str(error)}))


def _load(engine: RolloutEngine, command: Message, connection: Connection) -> None:
    engine.load(Path(command.facts["weights"]), command.facts["version"])
    send(connection, Message("done"))


def _complete(engine: Completer, command: Message, connection: Connection) -> None:
    sampling = {**command.facts["sampling"], "stop": tuple(command.facts["sampling"]["stop"])}
    requests, finished = read_requests(command.arrays), FinishedCompletions()
    finished.extend(requests, read_completions(command.arrays))
    finished.heard = lambda key, made: send(connection, Message("made", arrays=completion_arrays([(key, made)])))
    engine.complete(requests, Sampling(**sampling), finished)
    send(connection, Message("done"))


def _score(engine: Completer, command: Message, connection: Connection) -> None:
    send(connection, Message("done", {"logprobs": engine.score(command.facts["ids"])}))


def _token_logprobs(engine: Engine, command: Message, connection: Connection) -> None:
    found = sorted(engine.token_logprobs(read_rows(command.arrays)))
    send(connection, Message("done", arrays=lists_as_arrays([logprobs for _, logprobs in found])))


_COMMANDS: dict[str, Callable[[Any, Message, Connection], None]] = {
    "load": _load,
    "complete": _complete,
    "score": _score,
    "token_logprobs": _token_logprobs,
}


def _read(connection: Connection, commands: "SimpleQueue[Message]") -> None:
    """Queue the commands; end this process, whatever it is doing, as soon as the parent's end is closed."""
    while True:
        try:
            commands.put(receive(connection))
        except (EOFError, OSError):
            os._exit(0)


def _end_with(parent: int) -> None:
    """End this process with its parent, even if another process has inherited the parent's end of the connection."""
    wait_for_end_of(parent)
    os._exit(0)


if __name__ == "__main__":
    main()
