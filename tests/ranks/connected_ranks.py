"""Run a function in several processes that are connected as those of a training run are."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forked_command import start_server

_LONGEST_SECONDS = 120.0


def on_ranks(function: Callable[..., Any], folder: Path, *arguments: Any, ranks: int = 2) -> list[Any]:
    """What `function(*arguments)`, which must be one of a module, returns in each process, in rank order.

    Args:
        folder: in which the processes meet; used once.
    """
    start_server()
    context = multiprocessing.get_context("forkserver")
    told, processes = [], []
    for rank in range(ranks):
        ours, theirs = context.Pipe(duplex=False)
        environment = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank)}
        process = context.Process(target=_be_a_rank, args=(theirs, folder, environment, function, arguments))
        process.start()
        theirs.close()
        told.append(ours)
        processes.append(process)
    try:
        assert all(each.poll(_LONGEST_SECONDS) for each in told), "a process does not end"
        answers = [each.recv() for each in told]
    finally:
        for process in processes:
            process.kill()
            process.join()
    failures = [failure for failure, _ in answers if failure is not None]
    assert not failures, "\n".join(failures)
    return [answer for _, answer in answers]


def _be_a_rank(
    told: Connection, folder: Path, environment: dict[str, str], function: Callable[..., Any], arguments: Any
) -> None:
    os.environ.update(environment, LOCAL_WORLD_SIZE=environment["WORLD_SIZE"])
    from torch import distributed

    from posttrain.train.parallel.ranks import connect

    rank, ranks = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks)
    try:
        connect()
        answer = None, function(*arguments)
        distributed.barrier()
    except BaseException:  # noqa: BLE001 - whatever it is, it is the test's to tell
        answer = traceback.format_exc(), None
    told.send(answer)
    os._exit(0)  # threads of the function may be waiting for each other
