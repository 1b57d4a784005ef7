"""Grading pools that each have some of the graders, so that what one does to its process reaches none of another."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from posttrain.dataserver.grading.pool import GradingPool
from posttrain.dataserver.grading.rewards import Judgement
from posttrain.dataserver.grading.worker import RowCheck, RowFault, Task

A = TypeVar("A", Task, RowCheck)


class GradingPools:
    """All that is graded in processes."""

    def __init__(self, pools: Sequence[GradingPool]) -> None:
        """Each grader is in one of them."""
        self._pools = pools

    @property
    def deaths(self) -> int:
        """How many workers were killed or ended by themselves."""
        return sum(pool.deaths for pool in self._pools)

    async def grade(self, tasks: Sequence[Task], done: Callable[[int, Mapping[str, Judgement]], None]) -> None:
        """Grade all tasks, telling `done(number of the task, judgements)` as graders are done: for a task whose
        graders are in several pools, once for each of them."""
        async with asyncio.TaskGroup() as group:
            for pool in self._pools:
                group.create_task(_grade(pool, tasks, done))

    async def check_graders(self) -> list[str]:
        """Why graders cannot be used, one line each."""
        return [
            line for lines in await asyncio.gather(*(pool.check_graders() for pool in self._pools)) for line in lines
        ]

    async def check_rows(self, rows: Sequence[RowCheck]) -> list[RowFault]:
        """The rows that a grader cannot use."""
        asked = [(pool, [row for _, row in _of(pool, rows)]) for pool in self._pools]
        found = await asyncio.gather(*(pool.check_rows(some) for pool, some in asked if some))
        return sorted((fault for faults in found for fault in faults), key=lambda fault: fault.row)

    def close(self) -> None:
        """End the workers, whatever they do."""
        for pool in self._pools:
            pool.close()


async def _grade(
    pool: GradingPool, tasks: Sequence[Task], done: Callable[[int, Mapping[str, Judgement]], None]
) -> None:
    asked = _of(pool, tasks)
    if asked:
        await pool.grade([task for _, task in asked], lambda place, judged: done(asked[place][0], judged))


def _of(pool: GradingPool, asked: Sequence[A]) -> list[tuple[int, A]]:
    """What a pool is asked, with the number of each: those for which it has a grader, with its own graders alone."""
    own = ((number, each, tuple(filter(pool.graders.__contains__, each.graders))) for number, each in enumerate(asked))
    return [(number, each._replace(graders=graders)) for number, each, graders in own if graders]
