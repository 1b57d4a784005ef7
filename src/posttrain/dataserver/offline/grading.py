"""Grades completions as they are read, with the processes and graders of a dataserver, and hands them on in order."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.graders.remote import new_client
from posttrain.dataserver.graders.text.completions import completion_digest
from posttrain.dataserver.grading.cache import GradeBook, Question
from posttrain.dataserver.grading.questions import Questions, error_result, graded_result
from posttrain.dataserver.offline.completion import Completion, Judged, stage_of
from posttrain.dataserver.offline.progress import progress
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import GradeItem

_BATCH = 256
# Batches under way: while the slowest completions of one are waited for, the workers have the next ones.
_AHEAD = 4

C = TypeVar("C", bound=Completion)
Done = Callable[[C, Judged], None]


class _Asked(NamedTuple, Generic[C]):
    completion: C
    target: Target
    question: Question


def grade_all(loaded: Loaded, completions: Iterable[C], total: int, done: Done[C]) -> None:
    """Grade completions, however long it takes, and call `done` with each of them, in their order.

    Only some of them are in memory at a time. `total`: how many there are, for the progress that is shown.

    Raises:
        ConfigError: a grader cannot be loaded.
        DataError: a completion names a row that is not there.
    """
    with progress("grading", total) as advance:

        def count(completion: C, judged: Judged) -> None:
            done(completion, judged)
            advance()

        asyncio.run(_grade_all(loaded, iter(completions), count))


async def _grade_all(loaded: Loaded, completions: Iterator[C], done: Done[C]) -> None:
    questions = Questions(loaded.config, loaded.graders)
    pool = loaded.new_pool()
    try:
        await loaded.load_graders(pool)
        async with new_client() as client:
            book = loaded.new_book(pool, client)
            under_way: deque[_Batch[C]] = deque()
            while asked := [_asked(loaded, questions, each) for each in islice(completions, _BATCH)]:
                under_way.append(_Batch(loaded, book, asked))
                if len(under_way) == _AHEAD:
                    await under_way.popleft().finish(done)
            for batch in under_way:
                await batch.finish(done)
    finally:
        await _end_what_is_under_way()
        await asyncio.to_thread(pool.close)


async def _end_what_is_under_way() -> None:
    """What is still being graded would find its processes gone, and start new ones."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _asked(loaded: Loaded, questions: Questions, completion: C) -> _Asked[C]:
    target = loaded.samples.target(completion.sample_id)
    item = GradeItem(
        item_id=str(completion.number),
        sample_id=completion.sample_id,
        completion=completion.text,
        completion_tokens=completion.completion_tokens,
        truncated=completion.truncated,
    )
    stage_index = loaded.sampler.stage_index(completion.iteration)
    return _Asked(completion, target, questions.question(target, stage_index, item, completion_digest(completion.text)))


class _Batch(Generic[C]):
    """Completions that are being graded."""

    def __init__(self, loaded: Loaded, book: GradeBook, asked: list[_Asked[C]]) -> None:
        self._loaded = loaded
        self._asked = asked
        self._limit = loaded.config.limits.completion_chars
        self._answers = book.ask([each.question for each in asked if self._is_short(each)])

    async def finish(self, done: Done[C]) -> None:
        """Wait for all of them, and hand them on."""
        await self._answers.wait()
        graded = iter(self._answers.graded)
        for each in self._asked:
            stage = stage_of(self._loaded, each.target, each.completion.iteration)
            # As the server answers.
            result = error_result("", f"the completion is longer than {self._limit} characters")
            if self._is_short(each) and (answer := next(graded)) is not None:
                result = graded_result("", each.question.plan, answer)
            done(each.completion, Judged(each.target, stage, result))

    def _is_short(self, asked: _Asked[C]) -> bool:
        return len(asked.completion.text) <= self._limit
