"""The dataserver without HTTP: sample prompts and grade completions."""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from cachetools import LRUCache

from posttrain.dataserver.adaptive.sampler import AdaptiveSampler
from posttrain.dataserver.config.datasets import ReadDataset
from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.data.sampling import Slot
from posttrain.dataserver.data.substitutes import Substitutes
from posttrain.dataserver.graders.text.completions import completion_digest
from posttrain.dataserver.grading.cache import GradeBook
from posttrain.dataserver.grading.questions import Questions, deadline_result, error_result, graded_result
from posttrain.dataserver.journal.records import JournalRow, journal_rows
from posttrain.dataserver.journal.steps import StepStore
from posttrain.dataserver.journal.writer import JournalWriter
from posttrain.dataserver.metrics import Metrics
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import GradeItem, GradeRequest, GradeResponse, SampleRequest, SampleResponse
from posttrain.dataserver.step_reports import StepReport, StepResponse
from posttrain.errors import ConfigError, DataError, ServerError
from posttrain.web.refusal import Refusal

T = TypeVar("T")

# How many request ids are remembered, to notice one that is reused with other content.
_REMEMBERED_REQUESTS = 10_000

# Applies if rewards must be on disk before they are returned; the rest of the time is for writing them.
_SHARE_FOR_GRADING = 0.8
_SHORTEST_WRITE = 0.2


class Service:
    """Serves one config."""

    def __init__(
        self,
        loaded: Loaded,
        book: GradeBook,
        journal: JournalWriter | None,
        metrics: Metrics,
        adaptive: AdaptiveSampler | None,
        steps: StepStore,
    ) -> None:
        """`journal`: stores graded completions; None stores none. `adaptive`: chooses the training rows; needs a
        journal. `steps`: stores reports of optimizer steps."""
        self.config = loaded.config
        self.identity = loaded.meta.config_id
        self._sampler = loaded.sampler
        self._substitutes = Substitutes(loaded.config, loaded.sampler, loaded.sides)
        self._samples = loaded.samples
        self._book = book
        self._journal = journal
        self._metrics = metrics
        self._adaptive = adaptive
        self._steps = steps
        self._questions = Questions(loaded.config, loaded.graders)
        self._rows_are_made = not all(isinstance(dataset, ReadDataset) for dataset in self.config.datasets.values())
        self._requests = LRUCache[tuple[str, str], bytes](maxsize=_REMEMBERED_REQUESTS)

    async def sample(self, request: SampleRequest) -> SampleResponse:
        """The prompts of an iteration.

        Raises:
            Refusal: the server has another config than the request names, the batch is too large, the slots or
                substitutes do not exist, or the journal that adaptive sampling needs is unavailable.
        """
        self._require_config(request.config_id)
        if len(request.wanted) > (most := self.config.limits.batch_size):
            raise Refusal("bad_request", f"a request is for at most {most} prompts (limits.batch_size)")
        try:
            slots = await self._slots(request)
        except ConfigError as error:
            raise Refusal("bad_request", str(error)) from None
        except ServerError as error:
            raise Refusal("unavailable", str(error)) from None
        return SampleResponse(
            iteration=request.iteration,
            stage=self.config.stages[self._sampler.stage_index(request.iteration)].name,
            config_id=self.identity,
            exhausted=request.iteration >= self.config.total_iterations,
            samples=await self._aside(lambda: [self._samples.sample(slot) for slot in slots]),
        )

    async def grade(self, request: GradeRequest) -> GradeResponse:
        """One result per item, in item order, within `limits.grade_seconds`.

        Raises:
            Refusal: the request as a whole is not accepted, or its rewards cannot be stored and adaptive sampling needs
                them. A fault of a single item is reported in its result.
        """
        begin, limit = time.monotonic(), self.config.limits.grade_seconds
        self._require_config(request.config_id)
        digests = [completion_digest(item.completion) for item in request.items]
        self._require_acceptable(request, digests)
        stage_index = self._sampler.stage_index(request.iteration)
        targets = await self._aside(lambda: [self._target(item) for item in request.items])
        asked = [
            self._questions.question(target, stage_index, item, digest)
            for item, target, digest in zip(request.items, targets, digests, strict=True)
            if isinstance(target, Target)
        ]
        answers = self._book.ask(asked)
        left = limit * (_SHARE_FOR_GRADING if self._adaptive else 1.0) - (time.monotonic() - begin)
        await answers.wait(max(0.0, left))
        graded = zip(asked, answers.graded, strict=True)
        results = []
        for item, target in zip(request.items, targets, strict=True):
            if isinstance(target, str):
                results.append(error_result(item.item_id, target))
                continue
            question, answer = next(graded)
            if answer is None:
                results.append(deadline_result(item.item_id))
            else:
                results.append(graded_result(item.item_id, question.plan, answer))
        response = GradeResponse(
            request_id=request.request_id,
            iteration=request.iteration,
            stage=self.config.stages[stage_index].name,
            config_id=self.identity,
            results=results,
        )
        seconds = time.monotonic() - begin
        await self._keep(journal_rows(request, targets, digests, response, seconds * 1000), limit - seconds)
        self._metrics.graded(response.stage, targets, results)
        return response

    async def report_step(self, report: StepReport) -> StepResponse:
        """Store what a trainer reports of an optimizer step.

        Raises:
            Refusal: the server has another config than the report names, there are too many groups, or the journal's
                database is unavailable.
        """
        self._require_config(report.config_id)
        if len(report.groups) > (most := self.config.limits.items):
            raise Refusal("bad_request", f"a report has at most {most} groups (limits.items)")
        try:
            await asyncio.to_thread(self._steps.put, report)
        except ServerError as error:
            raise Refusal("unavailable", str(error)) from None
        return StepResponse(run_id=report.run_id, step=report.step)

    async def _aside(self, read: Callable[[], T]) -> T:
        """Read rows: directly from files, in a thread if a program generates any, which can take seconds."""
        return await asyncio.to_thread(read) if self._rows_are_made else read()

    async def _slots(self, request: SampleRequest) -> list[Slot]:
        iteration, run_id = request.iteration, request.run_id
        if request.attempt is not None:
            self._require_attempt(request.attempt)
            if self._adaptive is None:
                return await asyncio.to_thread(self._substitutes.slots, iteration, request.slots, request.attempt)
            return await self._planned(self._adaptive.substitutes(run_id, iteration, request.slots, request.attempt))
        assert request.batch_size is not None
        if self._adaptive is None or request.split == "validation":
            return self._sampler.slots(iteration, request.offset, request.batch_size, request.split)
        return await self._planned(self._adaptive.slots(run_id, iteration, request.offset, request.batch_size))

    def _require_attempt(self, attempt: int) -> None:
        if attempt > (most := self.config.substitutes):
            message = f"attempt {attempt} is too many: each prompt has {most} (`substitutes` in the server's config)"
            raise Refusal("no_substitute", message)

    async def _planned(self, slots: Coroutine[Any, Any, list[Slot]]) -> list[Slot]:
        """Wait for slots that a stored plan decides."""
        try:
            return await asyncio.wait_for(slots, self.config.limits.grade_seconds)
        except TimeoutError:
            raise ServerError("journal: the plan of the iteration was not ready in time; try again") from None

    def _require_config(self, wanted: str | None) -> None:
        if wanted is not None and wanted != self.identity:
            raise Refusal(
                "config_mismatch",
                f"this server's config_id is {self.identity}, but the request expects {wanted[:64]}: config, data or "
                "graders have changed since the run started",
            )

    def _require_acceptable(self, request: GradeRequest, digests: Sequence[str]) -> None:
        limits = self.config.limits
        if len(request.items) > limits.items:
            message = f"the request has {len(request.items)} items; at most {limits.items} are allowed (limits.items)"
            raise Refusal("bad_request", message)
        twice = [item_id for item_id, count in Counter(item.item_id for item in request.items).items() if count > 1]
        if twice:
            raise Refusal("bad_request", f"item_id {twice[0]!r} appears more than once in the request")
        # An idle server accepts any request; otherwise one with more items than the queue would never be accepted.
        if 0 < self._book.waiting > limits.queue_items - len(request.items):
            raise Refusal("overloaded", f"{self._book.waiting} completions already wait for a grader; try again later")
        key, digest = (request.run_id, request.request_id), _request_digest(request, digests)
        if self._requests.get(key, digest) != digest:
            raise Refusal("request_id_reused", f"request_id {request.request_id!r} was already used for other content")
        self._requests[key] = digest

    def _target(self, item: GradeItem) -> Target | str:
        """The row that the item answers, or why the item cannot be graded."""
        if len(item.completion) > self.config.limits.completion_chars:
            return f"the completion is longer than {self.config.limits.completion_chars} characters"
        try:
            return self._samples.target(item.sample_id)
        except DataError as error:
            return str(error)

    async def _keep(self, rows: Sequence[JournalRow], seconds: float) -> None:
        if self._journal is None:
            return
        if self._adaptive is None:
            self._journal.add(rows)
            return
        try:
            # Rewards that a trainer received must count in later iterations, even if the server is killed now.
            await asyncio.wait_for(asyncio.to_thread(self._journal.add_durable, rows), max(_SHORTEST_WRITE, seconds))
        except ServerError as error:
            raise Refusal("unavailable", str(error)) from None
        except TimeoutError:
            raise Refusal("unavailable", "journal: the rewards could not be stored in time; send them again") from None


def _request_digest(request: GradeRequest, digests: Sequence[str]) -> bytes:
    items = [
        (item.item_id, item.sample_id, item.completion_tokens, item.truncated, item.slot, item.attempt, digest)
        for item, digest in zip(request.items, digests, strict=True)
    ]
    content = repr((request.iteration, items)).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=16).digest()
