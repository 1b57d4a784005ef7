"""Check every gold answer with its graders before the server is ready."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from posttrain.base.cache import cache_dir
from posttrain.base.files import atomic_write_text
from posttrain.base.text import counted
from posttrain.data.sources import SHOWN_FAULTS
from posttrain.dataserver.config.datasets import ReadDataset
from posttrain.dataserver.data.dataset_rows import Row, json_digest
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.grading.pool import GradingPools
from posttrain.dataserver.grading.questions import graders_of, tasks_of
from posttrain.dataserver.grading.worker import RowCheck, RowFault
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import DataError

_ROWS_PER_TASK = 128

GradersByTask = Mapping[str | None, Mapping[str, Grader]]
"""By task, or None in a data set without tasks: graders by name."""

Progress = Callable[[str, int, int], None]
"""Called with the data set, the number of rows checked so far, and their total."""


async def check_golds(loaded: Loaded, pool: GradingPools, progress: Progress) -> None:
    """Check all gold answers, except in data sets that passed before with the same content and graders.

    Raises:
        DataError: rows cannot be graded; one message gives the first of each data set, by their place in the data.
    """
    problems: list[str] = []
    for name, dataset in loaded.config.datasets.items():
        graders = _checking(loaded, name)
        if not any(graders.values()) or not isinstance(dataset, ReadDataset):
            continue  # generated items come with golds that their own scorer reads
        mark = cache_dir() / "golds" / _key(loaded, name, graders)
        if mark.is_file():
            continue
        faults = await _check(loaded, name, graders, pool, progress)
        if faults:
            problems += [f"datasets.{name}: {counted(len(faults), 'row')} cannot be graded:"]
            problems += [f"  {line}" for line in faults[:SHOWN_FAULTS]]
            problems += [f"  ... and {len(faults) - SHOWN_FAULTS} more"] if len(faults) > SHOWN_FAULTS else []
        else:
            mark.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(mark, f"{name}: {len(loaded.datasets[name])} rows\n")
    if problems:
        raise DataError("\n".join([*problems, "fix the rows, or remove them from the file"]))


def _checking(loaded: Loaded, name: str) -> GradersByTask:
    """For each task of a data set, the graders that can check its rows."""
    return {
        task: {
            grader: loaded.graders[grader]
            for grader in graders_of(loaded.config, name, task)
            if type(loaded.graders[grader]).check_row is not Grader.check_row
        }
        for task in tasks_of(loaded.config, name)
    }


async def _check(
    loaded: Loaded, name: str, graders: GradersByTask, pool: GradingPools, progress: Progress
) -> list[str]:
    """The faults in the rows of a data set, one line each."""
    rows, faults, done = loaded.datasets[name], list[str](), 0

    def check(row: Row) -> RowCheck:
        item = GradeInput("", None, gold=loaded.samples.gold(name, row), record=row.record)
        return RowCheck(row.index, tuple(graders[loaded.samples.task(name, row)]), item)

    checks = map(check, map(rows.read, range(len(rows))))
    # A few tasks at a time: enough to keep the workers busy, without all rows in memory.
    while batch := list(islice(checks, _ROWS_PER_TASK * 8)):
        parts = [batch[start : start + _ROWS_PER_TASK] for start in range(0, len(batch), _ROWS_PER_TASK)]
        found = [fault for part in await asyncio.gather(*map(pool.check_rows, parts)) for fault in part]
        found += [fault for each in batch for fault in _too_long(each, loaded)]
        faults += [f"{rows.place(fault.row)}: {fault.grader}: {fault.reason}" for fault in found]
        done += len(batch)
        progress(name, done, len(rows))
    return faults


def _too_long(check: RowCheck, loaded: Loaded) -> Iterator[RowFault]:
    """A fault for each grader that may take longer on a row than all graders together may."""
    most = loaded.config.limits.grader_seconds
    for name in check.graders:
        seconds = loaded.graders[name].seconds_at_most(check.item)
        if seconds > most:
            reason = f"one completion may take {seconds:g} s under the grader's own limits"
            yield RowFault(check.row, name, f"{reason}, but limits.grader_seconds is {most:g}")


def _key(loaded: Loaded, name: str, graders: GradersByTask) -> str:
    described = [
        [task, grader_name, grader.type_name, grader.model_dump(mode="json"), grader.identity()]
        for task, checking in graders.items()
        for grader_name, grader in checking.items()
    ]
    gold = loaded.config.datasets[name].model_dump(mode="json", include={"gold", "columns", "task_column"})
    return json_digest([loaded.datasets[name].digest, gold, described, loaded.config.limits.grader_seconds])
