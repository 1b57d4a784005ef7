"""Checks every gold answer once before the server is ready: a row whose grader cannot read its gold teaches nothing."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from toolkit.core.cache import cache_dir
from toolkit.core.files import atomic_write_text
from toolkit.core.sources import SHOWN_FAULTS
from toolkit.dataserver.config.dataserver import DataserverConfig
from toolkit.dataserver.config.datasets import FileDataset
from toolkit.dataserver.graders.base import Grader
from toolkit.dataserver.plans import graders_of
from toolkit.dataserver.pools import GradingPools
from toolkit.dataserver.rows import Rows, json_digest
from toolkit.dataserver.samples import Samples
from toolkit.dataserver.workers import RowCheck
from toolkit.errors import DataError

_ROWS_PER_TASK = 128

Progress = Callable[[str, int, int], None]
"""Told the data set, the rows that are checked, and how many there are."""


async def check_golds(
    config: DataserverConfig,
    datasets: Mapping[str, Rows],
    samples: Samples,
    graders: Mapping[str, Grader],
    pool: GradingPools,
    progress: Progress,
) -> None:
    """Check what has not been found good before, with the same content and the same graders.

    Raises:
        DataError: rows cannot be graded; all in one message, each by its place in the data.
    """
    problems: list[str] = []
    for name, rows in datasets.items():
        checked = tuple(grader for grader in graders_of(config, name) if overrides_check(graders[grader]))
        if not checked or not isinstance(config.datasets[name], FileDataset):
            continue  # items that a program makes come with golds that its own scorer reads
        mark = cache_dir() / "golds" / _key(config, rows, name, {grader: graders[grader] for grader in checked})
        if mark.is_file():
            continue
        faults = await _check(name, rows, samples, checked, pool, progress)
        if faults:
            problems += [f"datasets.{name}: {len(faults)} row{'s' * (len(faults) > 1)} cannot be graded:"]
            problems += [f"  {line}" for line in faults[:SHOWN_FAULTS]]
            problems += [f"  ... and {len(faults) - SHOWN_FAULTS} more"] if len(faults) > SHOWN_FAULTS else []
        else:
            mark.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(mark, f"{name}: {len(rows)} rows\n")
    if problems:
        raise DataError("\n".join([*problems, "correct the rows, or leave them out of the file"]))


def overrides_check(grader: Grader) -> bool:
    """Whether a grader wants anything of a row."""
    return type(grader).check_row is not Grader.check_row


async def _check(
    name: str, rows: Rows, samples: Samples, graders: tuple[str, ...], pool: GradingPools, progress: Progress
) -> list[str]:
    faults: list[str] = []
    checks = _row_checks(name, rows, samples, graders)
    done = 0
    # A few tasks ahead of the workers: enough to keep them busy, without all rows in memory.
    while batch := list(islice(checks, _ROWS_PER_TASK * 8)):
        parts = [batch[start : start + _ROWS_PER_TASK] for start in range(0, len(batch), _ROWS_PER_TASK)]
        for found in await asyncio.gather(*(pool.check_rows(part) for part in parts)):
            faults += [f"{rows.place(fault.row)}: {fault.grader}: {fault.reason}" for fault in found]
        done += len(batch)
        progress(name, done, len(rows))
    return faults


def _row_checks(name: str, rows: Rows, samples: Samples, graders: tuple[str, ...]) -> Iterator[RowCheck]:
    for index in range(len(rows)):
        row = rows.read(index)
        yield RowCheck(index, graders, samples.gold(name, row), row.record)


def _key(config: DataserverConfig, rows: Rows, name: str, graders: Mapping[str, Grader]) -> str:
    described = {
        grader_name: [grader.type_name, grader.model_dump(mode="json"), grader.identity()]
        for grader_name, grader in graders.items()
    }
    gold = config.datasets[name].model_dump(mode="json", include={"gold", "columns"})
    return json_digest([rows.digest, gold, described])
