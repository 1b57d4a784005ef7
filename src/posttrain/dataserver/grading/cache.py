"""Completions to rewards: each different one is graded once, however often and by whomever it is asked."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
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
    """What became of one completion."""

    reward: Reward
    judgements: Mapping[str, Judgement]


class Question(NamedTuple):
    """One completion, and all that its reward depends on."""

    sample_id: str
    plan_name: str
    """Names the plan: two questions with equal names have equal plans."""
    plan: GradingPlan
    task: Task
    digest: str
    """Of the completion."""

    def key(self) -> tuple[object, ...]:
        """Equal keys have equal rewards."""
        return (self.sample_id, self.plan_name, self.digest, self.task.item.completion_tokens, self.task.item.truncated)


class Answers:
    """What becomes of the questions of one request, in their order; None where it is not known yet."""

    def __init__(self, count: int) -> None:
        self.graded: list[Graded | None] = [None] * count
        self._missing = count
        self._complete = asyncio.Event()
        if not count:
            self._complete.set()

    def add(self, number: int, graded: Graded) -> None:
        """The answer to one question."""
        self.graded[number] = graded
        self._missing -= 1
        if not self._missing:
            self._complete.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until all are there, or the time is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._complete.wait(), seconds)


@dataclass(slots=True)
class _Open:
    """A question that is being graded."""

    question: Question
    key: tuple[object, ...]
    found: dict[str, Judgement] = field(default_factory=dict)
    asked_by: list[tuple[Answers, int]] = field(default_factory=list)
    """Who waits for it, and which of their questions it is."""


class GradeBook:
    """Remembers rewards, joins equal questions that are under way, and sends the rest to the graders."""

    def __init__(
        self,
        graders: Mapping[str, Grader],
        pool: GradingPools,
        client: "httpx.AsyncClient | None",
        cache_bytes: int,
        failure_seconds: float = 60.0,
    ) -> None:
        """Make an empty book.

        Args:
            client: for the graders that ask other services; None where there are none.
            cache_bytes: memory for what is remembered.
            failure_seconds: after this time a completion whose grading failed may be graded again.
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
        """How many different completions are being graded or wait for it."""
        return len(self._under_way)

    def ask(self, questions: Sequence[Question]) -> Answers:
        """Have them graded, but for those whose answers are known or under way."""
        answers = Answers(len(questions))
        new: list[_Open] = []
        for number, question in enumerate(questions):
            key = question.key()
            known = self._known.get(key) or self._failed.get(key)
            if known is not None:
                answers.add(number, known)
                continue
            if (under_way := self._under_way.get(key)) is None:
                under_way = self._under_way[key] = _Open(question, key)
                new.append(under_way)
            under_way.asked_by.append((answers, number))
        self.cache_hits += len(questions) - len(new)
        if new:
            # On its own, so that a client who goes away does not take the work of the others along.
            batch = asyncio.get_running_loop().create_task(self._grade(new))
            self._batches.add(batch)
            batch.add_done_callback(self._batches.discard)
        return answers

    async def close(self) -> None:
        """Give up what is under way; to be called when nobody waits for it any more."""
        for batch in self._batches:
            batch.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)

    def _answer(self, done: _Open) -> None:
        """Tell all who asked, and whoever asks next."""
        del self._under_way[done.key]
        graded = Graded(total_reward(done.question.plan, done.found), done.found)
        for answers, number in done.asked_by:
            answers.add(number, graded)
        if any(judgement.status == "error" for judgement in graded.judgements.values()):
            self._failed[done.key] = graded
        elif _size(graded) <= self._known.maxsize:
            self._known[done.key] = graded

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
        except* Exception as errors:  # whatever it is, each completion gets an answer
            logger.exception("grading failed")
            reason = shown(f"grading failed: {_innermost(errors)}")
            for each in asked:
                if self._under_way.get(each.key) is each:
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
    """The first error of a group of any depth."""
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
