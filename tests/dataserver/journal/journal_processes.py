"""Processes for tests: a writer to kill, a writer with a full disk, and several that race."""

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import TypeVar

from journal_rows import row

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import open_database
from posttrain.dataserver.journal.writer import JournalStats, JournalWriter

Answer = TypeVar("Answer")


def race(work: Callable[[JournalConfig, int], Answer], config: JournalConfig, runners: int = 4) -> list[Answer]:
    """The results of `work(config, number)` in processes that all start at the same moment."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(runners, _line_up, [context.Barrier(runners)]) as pool:
        return pool.starmap(_run, [(work, config, number) for number in range(runners)], chunksize=1)


def _line_up(barrier: Barrier) -> None:
    globals()["start"] = barrier


def _run(work: Callable[[JournalConfig, int], Answer], config: JournalConfig, number: int) -> Answer:
    globals()["start"].wait(60)
    return work(config, number)


def write_for_ever(config: JournalConfig) -> None:
    """Add 20 rows at a time, and print the total and the system-wide monotonic time after each batch."""
    writer = JournalWriter(open_database(config), config)
    for start in range(0, 10**9, 20):
        writer.add(row(number, completion="word " * 200) for number in range(start, start + 20))
        sys.stdout.write(f"{start + 20} {time.monotonic()}\n")
        sys.stdout.flush()
        time.sleep(0.005)


def fill_the_disk(folder: Path) -> None:
    """Write to a 1 MB disk that fills up and is freed again, and print the counters at each point."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "journal", str(folder)], check=True)
    config = JournalConfig(path=folder / "journal.sqlite", max_queued_rows=30, batch_seconds=0.05)
    writer = JournalWriter(open_database(config), config)
    moments = []
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.strerror == "No space left on device"
    writer.add(row(number, completion=str(number) * 10_000) for number in range(20))
    moments.append(wait_for(writer, lambda stats: stats.last_error is not None))
    writer.add(row(number) for number in range(20, 50))
    moments.append(writer.stats())
    ballast.unlink()
    assert writer.flush()
    moments.append(writer.stats())
    sys.stdout.write(json.dumps(moments))


def wait_for(writer: JournalWriter, reached: Callable[[JournalStats], bool]) -> JournalStats:
    """The counters, once they satisfy `reached`."""
    deadline = time.monotonic() + 20
    while not reached(stats := writer.stats()):
        assert time.monotonic() < deadline, stats
        time.sleep(0.01)
    return stats


if __name__ == "__main__":
    if sys.argv[1] == "write_for_ever":
        write_for_ever(JournalConfig(**json.loads(sys.argv[2])))
    else:
        fill_the_disk(Path(sys.argv[2]))
