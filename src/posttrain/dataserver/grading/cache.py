"""Grade each distinct completion once, however often it is requested."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cachetools import LRUCache, TTLCache

from posttrain.dataserver.graders.base import Grader, checked_score
from posttrain.dataserver.graders.remote import Failure, Outcome, RemoteGrader
from posttrain.dataserver.grading.pool import GradingPools
from posttrain.dataserver.grading.rewards import GradingPlan, Judgement, Reward, total_reward
from posttrain.dataserver.grading.worker import Task, shown

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

_REMEMBERED_FAILURES = 10_000

_BYTES_PER_JUDGEMENT = 400


class Graded(NamedTuple):
    """The reward of one completion, and what each grader said."""

    reward: Reward
    judgements: Mapping[str, Judgement]


class Question(NamedTuple):
    """One completion and everything that its reward depends on."""

    sample_id: str
    plan_name: str
    """Identifies the plan among those of the data set."""
    plan: GradingPlan
    task: Task
    digest: str
    """Of the completion."""

    def key(self) -> tuple[object, ...]:
        """Questions with equal keys have equal rewards."""
        return (self.sample_id, self.plan_name, self.digest, self.task.item.completion_tokens, self.task.item.truncated)


class Answers:
    """The answers to the questions of one request, in question order."""

    def __init__(self, futures: Sequence[asyncio.Future[Graded]]) -> None:
        self._futures = futures

    @property
    def graded(self) -> list[Graded | None]:
        """The answers so far; None for those still pending."""
        return [future.result() if future.done() else None for future in self._futures]

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until all answers are there, or `seconds` have passed."""
        if missing := {future for future in self._futures if not future.done()}:
            await asyncio.wait(missing, timeout=seconds)


class _Open(NamedTuple):
    """A question that is being graded, with the future for its answer and the judgements so far."""

    question: Question
    answer: asyncio.Future[Graded]
    found: dict[str, Judgement]


class GradeBook:
    """Caches rewards, merges equal questions that are in progress, and sends the rest to the graders."""

    def __init__(
        self,
        graders: Mapping[str, Grader],
        pool: GradingPools,
        client: "httpx.AsyncClient | None",
        cache_bytes: int,
        failure_seconds: float = 60.0,
    ) -> None:
        """Create an empty book.

        Args:
            client: for graders that call other services; None if there are none.
            cache_bytes: memory for the cached rewards.
            failure_seconds: how long to wait before a completion whose grading failed may be graded again.
        """
        self._remote = {name: grader for name, grader in graders.items() if isinstance(grader, RemoteGrader)}
        self._pool = pool
        self._client = client
        self._known = LRUCache[tuple[object, ...], Graded](maxsize=max(1, cache_bytes), getsizeof=_size)
        self._failed = TTLCache[tuple[object, ...], Graded](_REMEMBERED_FAILURES, failure_seconds, time.monotonic)
        self._under_way: dict[tuple[object, ...], _Open] = {}
        self._batches = set[asyncio.Task[None]]()
        self.cache_hits = 0
        """Questions that needed no grading, because an equal one had been asked."""

    @property
    def waiting(self) -> int:
        """Number of distinct completions that are being graded or wait for it."""
        return len(self._under_way)

    def ask(self, questions: Sequence[Question]) -> Answers:
        """Send questions to the graders, except those whose answers are known or in progress."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Graded]] = []
        new: list[_Open] = []
        for question in questions:
            key = question.key()
            if (under_way := self._under_way.get(key)) is not None:
                answers.append(under_way.answer)
                continue
            answers.append(loop.create_future())
            if (known := self._known.get(key) or self._failed.get(key)) is not None:
                answers[-1].set_result(known)
            else:
                self._under_way[key] = _Open(question, answers[-1], {})
                new.append(self._under_way[key])
        self.cache_hits += len(questions) - len(new)
        if new:
            # A separate task, so that a client that disconnects does not cancel the work of others.
            batch = loop.create_task(self._grade(new))
            self._batches.add(batch)
            batch.add_done_callback(self._batches.discard)
        return Answers(answers)

    async def close(self) -> None:
        """Cancel the grading in progress. Call this when nobody waits for it any more."""
        for batch in self._batches:
            batch.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)

    def _answer(self, done: _Open) -> None:
        """Give the answer to everyone who waits for it, and cache it."""
        key = done.question.key()
        del self._under_way[key]
        graded = Graded(total_reward(done.question.plan, done.found), done.found)
        done.answer.set_result(graded)
        if any(judgement.status == "error" for judgement in graded.judgements.values()):
            self._failed[key] = graded
        elif _size(graded) <= self._known.maxsize:
            self._known[key] = graded

    async def _grade(self, asked: Sequence[_Open]) -> None:
        def add(each: _Open, judgements: Mapping[str, Judgement]) -> None:
            each.found.update(judgements)
            if len(each.found) == len(each.question.plan.graders):
                self._answer(each)

        try:
            async with asyncio.TaskGroup() as group:
                for name, grader in self._remote.items():
                    if wanted := [each for each in asked if name in each.question.plan.graders]:
                        group.create_task(self._ask_remote(name, grader, wanted, add))
                local = [each for each in asked if each.question.task.graders]
                tasks = [each.question.task for each in local]
                group.create_task(self._pool.grade(tasks, lambda number, judged: add(local[number], judged)))
        except* Exception as errors:  # whatever fails, each completion gets an answer
            logger.exception("grading failed")
            reason = shown(f"grading failed: {_innermost(errors)}")
            for each in asked:
                if not each.answer.done():
                    missing = {name: Judgement("error", None, 0.0, reason) for name in each.question.plan.graders}
                    add(each, {**missing, **each.found})

    async def _ask_remote(self, name: str, grader: RemoteGrader, asked: Sequence[_Open], add: "_Add") -> None:
        begin = time.perf_counter()
        try:
            assert self._client is not None
            items = [each.question.task.item.split() for each in asked]
            outcomes = await grader.score_all(items, self._client)
            judged = list(zip(asked, outcomes, strict=True))
        except Exception as error:  # noqa: BLE001  # it costs these completions their score, and no others
            failure = Failure("error", f"{type(error).__name__}: {error}")
            judged = [(each, failure) for each in asked]
        milliseconds = (time.perf_counter() - begin) * 1000
        for each, outcome in judged:
            add(each, {name: _judgement(outcome, milliseconds)})


_Add = Callable[[_Open, Mapping[str, Judgement]], None]


def _innermost(error: BaseException) -> BaseException:
    """The first error inside nested exception groups."""
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _judgement(outcome: Outcome, milliseconds: float) -> Judgement:
    if isinstance(outcome, Failure):
        return Judgement(outcome.status, None, milliseconds, shown(outcome.detail))
    try:
        score = checked_score(outcome)
    except ValueError as error:
        return Judgement("error", None, milliseconds, shown(str(error)))
    return Judgement("ok", score.value, milliseconds, shown(score.detail))


def _size(graded: Graded) -> int:
    return _BYTES_PER_JUDGEMENT * (1 + len(graded.judgements)) + sum(len(j.detail) for j in graded.judgements.values())
