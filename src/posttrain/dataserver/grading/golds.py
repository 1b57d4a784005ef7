"""Checks every gold answer once before the server is ready: a row whose grader cannot read its gold teaches nothing."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from posttrain.base.cache import cache_dir
from posttrain.base.files import atomic_write_text
from posttrain.data.sources import SHOWN_FAULTS
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import FileDataset
from posttrain.dataserver.data.dataset_rows import Rows, json_digest
from posttrain.dataserver.data.samples import Samples
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.grading.grading_plans import graders_of
from posttrain.dataserver.grading.pools import GradingPools
from posttrain.dataserver.grading.worker import RowCheck, RowFault
from posttrain.errors import DataError

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
        checked = {grader: graders[grader] for grader in graders_of(config, name) if overrides_check(graders[grader])}
        if not checked or not isinstance(config.datasets[name], FileDataset):
            continue  # items that a program makes come with golds that its own scorer reads
        mark = cache_dir() / "golds" / _key(config, rows, name, checked)
        if mark.is_file():
            continue
        checks = _Checks(name, rows, samples, checked, config.limits.grader_seconds)
        faults = await _check(checks, pool, progress)
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


@dataclass(frozen=True)
class _Checks:
    """What is to be checked of a data set."""

    dataset: str
    rows: Rows
    samples: Samples
    graders: Mapping[str, Grader]
    seconds: float
    """For all graders together on one completion."""

    def __iter__(self) -> Iterator[RowCheck]:
        for index in range(len(self.rows)):
            row = self.rows.read(index)
            yield RowCheck(index, tuple(self.graders), self.samples.gold(self.dataset, row), row.record)

    def too_long(self, check: RowCheck) -> Iterator[RowFault]:
        """The graders that may take longer on a row than there is time."""
        item = GradeInput(completion="", answer=None, gold=check.gold, record=check.record)
        for name, grader in self.graders.items():
            seconds = grader.seconds_at_most(item)
            if seconds > self.seconds:
                reason = f"one completion may take {seconds:g} s by the grader's own limits"
                yield RowFault(check.row, name, f"{reason}, and limits.grader_seconds is {self.seconds:g}")


async def _check(checks: _Checks, pool: GradingPools, progress: Progress) -> list[str]:
    faults: list[str] = []
    left, done = iter(checks), 0
    # A few tasks ahead of the workers: enough to keep them busy, without all rows in memory.
    while batch := list(islice(left, _ROWS_PER_TASK * 8)):
        parts = [batch[start : start + _ROWS_PER_TASK] for start in range(0, len(batch), _ROWS_PER_TASK)]
        found = [fault for part in await asyncio.gather(*map(pool.check_rows, parts)) for fault in part]
        found += [fault for check in batch for fault in checks.too_long(check)]
        faults += [f"{checks.rows.place(fault.row)}: {fault.grader}: {fault.reason}" for fault in found]
        done += len(batch)
        progress(checks.dataset, done, len(checks.rows))
    return faults


def _key(config: DataserverConfig, rows: Rows, name: str, graders: Mapping[str, Grader]) -> str:
    described = {
        grader_name: [grader.type_name, grader.model_dump(mode="json"), grader.identity()]
        for grader_name, grader in graders.items()
    }
    gold = config.datasets[name].model_dump(mode="json", include={"gold", "columns"})
    return json_digest([rows.digest, gold, described, config.limits.grader_seconds])
