"""The processes of a run in the background: its trainers, their engines and the dataserver."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

_MODULES = {
    "engine": "posttrain.inference.process.worker",
    "dataserver": "posttrain.rl.client.local_server_process",
}


def of_kind(run: int, kind: str) -> list[psutil.Process]:
    """The engines or the dataservers of the run that has this process id, or whose ranks are its children."""
    found = []
    with suppress(psutil.Error):
        for each in psutil.Process(run).children(recursive=True):
            with suppress(psutil.Error):
                if _MODULES[kind] in each.cmdline():
                    found.append(each)
    return found


def engine_of(run: int) -> psutil.Process | None:
    """The engine of a run, or of one of its ranks; None if there is none now."""
    return next(iter(of_kind(run, "engine")), None)


@contextmanager
def pausing(run: int, seed: int) -> Iterator[set[str]]:
    """Stop a process of a run now and then, for up to 0.2 s; yields who was stopped: "trainer 0", "engine 0" and so on.

    Those of ranks are numbered in the order of their starts.
    """
    draw, done = random.Random(seed), threading.Event()
    paused: set[str] = set()

    def pause() -> None:
        while not done.wait(draw.uniform(0, 0.1)):
            there = {f"{kind} {number}": each for kind in _MODULES for number, each in enumerate(of_kind(run, kind))}
            with suppress(psutil.Error):
                there |= {
                    name.replace("engine", "trainer"): each.parent() or each
                    for name, each in there.items()
                    if "engine" in name
                }
            if not there:
                continue
            name = draw.choice(sorted(there))
            with suppress(ProcessLookupError):
                os.kill(there[name].pid, signal.SIGSTOP)
                paused.add(name)
                time.sleep(draw.uniform(0, 0.2))
                os.kill(there[name].pid, signal.SIGCONT)

    thread = threading.Thread(target=pause)
    thread.start()
    try:
        yield paused
    finally:
        done.set()
        thread.join()
