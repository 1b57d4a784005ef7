"""Completions to rewards: each different one is graded once, however often and by whomever it is asked."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from cachetools import LRUCache, TTLCache

from toolkit.dataserver.completions import GradeInput, ReasoningTags
from toolkit.dataserver.graders.base import Grader, checked_score
from toolkit.dataserver.graders.remote import Failure, Outcome, RemoteGrader
from toolkit.dataserver.pool import GradingPool
from toolkit.dataserver.rewards import GradingPlan, Judgement, Reward, total_reward
from toolkit.dataserver.workers import Task, grade_input, shown

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

_REMEMBERED_FAILURES = 10_000

_BYTES_PER_JUDGEMENT = 400


class Graded(NamedTuple):
    """What became of one completion."""

    reward: Reward
    judgements: Mapping[str, Judgement]


@dataclass(frozen=True, slots=True)
class Question:
    """One completion, and all that its reward depends on."""

    sample_id: str
    plan_name: str
    """Names the plan: two questions with equal names have equal plans."""
    plan: GradingPlan
    task: Task

    def key(self) -> tuple[object, ...]:
        """Equal keys have equal rewards."""
        digest = hashlib.blake2b(self.task.completion.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        return (self.sample_id, self.plan_name, digest, self.task.completion_tokens, self.task.truncated)


class GradeBook:
    """Remembers rewards, joins equal questions that are under way, and sends the rest to the graders."""

    def __init__(
        self,
        graders: Mapping[str, Grader],
        tags: Mapping[str, ReasoningTags | None],
        pool: GradingPool,
        client: "httpx.AsyncClient | None",
        cache_bytes: int,
        failure_seconds: float = 60.0,
    ) -> None:
        """Make an empty book.

        Args:
            tags: the reasoning tags of each data set.
            client: for the graders that ask other services; None where there are none.
            cache_bytes: memory for what is remembered.
            failure_seconds: after this time a completion whose grading failed may be graded again.
        """
        self._remote = {name: grader for name, grader in graders.items() if isinstance(grader, RemoteGrader)}
        self._tags = tags
        self._pool = pool
        self._client = client
        self._known = LRUCache[tuple[object, ...], Graded](maxsize=max(1, cache_bytes), getsizeof=_size)
        self._failed = TTLCache[tuple[object, ...], Graded](_REMEMBERED_FAILURES, failure_seconds, time.monotonic)
        self._under_way: dict[tuple[object, ...], asyncio.Future[Graded]] = {}
        self._batches = set[asyncio.Task[None]]()
        self.cache_hits = 0
        """Questions that needed no grading, because an equal one had been asked."""

    @property
    def waiting(self) -> int:
        """How many different completions are being graded or wait for it."""
        return len(self._under_way)

    def ask(self, questions: Sequence[Question]) -> list[asyncio.Future[Graded]]:
        """One future per question, in their order; none of them raises."""
        loop = asyncio.get_running_loop()
        answers: list[asyncio.Future[Graded]] = []
        new: list[tuple[Question, asyncio.Future[Graded]]] = []
        for question in questions:
            key = question.key()
            known, future = self._known.get(key) or self._failed.get(key), self._under_way.get(key)
            if known is not None:
                future = loop.create_future()
                future.set_result(known)
            elif future is None:
                future = self._under_way[key] = loop.create_future()
                future.add_done_callback(lambda done, key=key: self._remember(key, done))
                new.append((question, future))
                answers.append(future)
                continue
            self.cache_hits += 1
            answers.append(future)
        if new:
            # On its own, so that a client who goes away does not take the work of the others along.
            batch = loop.create_task(self._grade(new))
            self._batches.add(batch)
            batch.add_done_callback(self._batches.discard)
        return answers

    async def close(self) -> None:
        """Give up what is under way; to be called when nobody waits for it any more."""
        for batch in self._batches:
            batch.cancel()
        await asyncio.gather(*self._batches, return_exceptions=True)

    def _remember(self, key: tuple[object, ...], done: "asyncio.Future[Graded]") -> None:
        del self._under_way[key]
        if done.cancelled():
            return
        graded = done.result()
        if any(judgement.status == "error" for judgement in graded.judgements.values()):
            self._failed[key] = graded
        elif _size(graded) <= self._known.maxsize:
            self._known[key] = graded

    async def _grade(self, asked: Sequence[tuple[Question, "asyncio.Future[Graded]"]]) -> None:
        found: list[dict[str, Judgement]] = [{} for _ in asked]

        def add(number: int, judgements: Mapping[str, Judgement]) -> None:
            found[number].update(judgements)
            question, future = asked[number]
            if len(found[number]) == len(question.plan.graders) and not future.done():
                future.set_result(Graded(total_reward(question.plan, found[number]), found[number]))

        try:
            async with asyncio.TaskGroup() as group:
                self._start_remote(group, asked, add)
                local = [number for number, (question, _) in enumerate(asked) if question.task.graders]
                tasks = [asked[number][0].task for number in local]
                group.create_task(self._pool.grade(tasks, lambda number, judged: add(local[number], judged)))
        except* Exception as errors:  # whatever it is, each completion gets an answer
            logger.exception("grading failed")
            reason = shown(f"grading failed: {_innermost(errors)}")
            for number, (question, future) in enumerate(asked):
                if not future.done():
                    missing = {name: Judgement("error", None, 0.0, reason) for name in question.plan.graders}
                    add(number, {**missing, **found[number]})

    def _start_remote(self, group: asyncio.TaskGroup, asked: Sequence[tuple[Question, object]], add: "_Add") -> None:
        for name, grader in self._remote.items():
            wanted = [number for number, (question, _) in enumerate(asked) if name in question.plan.graders]
            if wanted:
                tasks = [asked[number][0].task for number in wanted]
                items = [grade_input(task, self._tags[task.dataset]) for task in tasks]
                group.create_task(self._ask_remote(name, grader, items, wanted, add))

    async def _ask_remote(
        self, name: str, grader: RemoteGrader, items: list[GradeInput], numbers: list[int], add: "_Add"
    ) -> None:
        begin = time.perf_counter()
        try:
            assert self._client is not None
            outcomes = await grader.score_all(items, self._client)
            judged = list(zip(numbers, outcomes, strict=True))
        except Exception as error:  # noqa: BLE001  # it costs these completions their score, and no others
            failure = Failure("error", f"{type(error).__name__}: {error}")
            judged = [(number, failure) for number in numbers]
        milliseconds = (time.perf_counter() - begin) * 1000
        for number, outcome in judged:
            add(number, {name: _judgement(outcome, milliseconds)})


_Add = Callable[[int, Mapping[str, Judgement]], None]


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
