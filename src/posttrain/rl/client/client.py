"""Client of the dataserver: sample prompts and grade completions."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from posttrain.dataserver.schemas import GradeItem, GradeResult, Meta, Sample, SampleRequest, Split
from posttrain.dataserver.step_reports import GroupReport, StepReport
from posttrain.errors import ConfigError, ServerError
from posttrain.rl.client.protocol import (
    GradeCall,
    Label,
    bounded_run_id,
    encoded,
    grade_calls,
    is_first_version,
    is_late,
    read_meta,
    read_results,
    read_samples,
    require_config,
)
from posttrain.rl.client.transport import Transport, WrongServerError

logger = logging.getLogger(__name__)

# Added to the time within which the server promises an answer, for sending and reading on a busy machine.
_MARGIN_SECONDS = 15.0
_META_SECONDS = 30.0
_REPORT_SECONDS = 10.0
# Whatever a server promises, it is not waited for longer than a day.
_LONGEST_PROMISE_SECONDS = 86_400.0


class DataserverClient:
    """Client of one dataserver, for one process of a run; its threads may use it at once.

    A request is repeated under the same id while the server is down, busy or answers nonsense; it survives a restart of
    the server and still returns the same. A refused request is not repeated.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        run_id: str,
        rank: int = 0,
        retry_seconds: float = 300.0,
        request_seconds: float | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            run_id: names the run, across resumes; adaptive sampling uses earlier grades under this name.
            retry_seconds: how long one request is repeated. The last try may take `request_seconds` more.
            request_seconds: how long one try may take; None for what the server promises plus a margin.
            check: called before each repetition, in the thread of the request; an exception ends them, e.g. if the
                server will not come back.

        Raises:
            ConfigError: the URL or the token cannot be used.
        """
        self._transport = Transport(url, token, retry_seconds, check)
        self._run_id = bounded_run_id(run_id)
        self._rank = rank
        self._retry_seconds = retry_seconds
        self._request_seconds = request_seconds
        self._config_id: str | None = None
        self._meta: Meta | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The server's address."""
        return self._transport.url

    @property
    def retries(self) -> int:
        """Number of repetitions so far."""
        return self._transport.retries

    def expect(self, config_id: str) -> None:
        """Accept only prompts and rewards of this config from now on; without this call, the first `meta` decides."""
        self._config_id = config_id

    def meta(self) -> Meta:
        """The server's description of itself.

        Raises:
            ServerError: it cannot be reached, is not a dataserver, speaks another protocol, or has another config
                than expected.
        """
        return self._fetch_meta(None)

    def connect(self, wait_seconds: float) -> Meta:
        """Wait until prompts and rewards are served, for at most `wait_seconds`.

        A problem that a server reports while it still starts, such as another config, raises at once.

        Raises:
            ConfigError: the address or the token is wrong.
            ServerError: as `meta`.
        """
        begin = time.monotonic()
        try:
            meta = self._fetch_meta(wait_seconds)
        except WrongServerError as error:
            raise ConfigError(str(error)) from None
        left = max(0.0, wait_seconds - (time.monotonic() - begin))
        self._transport.send("/readyz", None, self._request_seconds or _META_SECONDS, bytes, left)
        return meta

    def sample(self, iteration: int, offset: int, batch_size: int, split: Split = "train") -> list[Sample]:
        """The prompts in slots offset … offset + batch_size − 1 of an iteration.

        Raises:
            ServerError: the server refuses, now has another config, or does not answer for too long.
        """
        page = self._known_meta().limits.max_batch_size
        samples: list[Sample] = []
        for start in range(offset, offset + batch_size, page):
            size = min(page, offset + batch_size - start)
            samples += self._ask(self._request(iteration, offset=start, batch_size=size, split=split))
        return samples

    def substitutes(self, iteration: int, slots: Sequence[int], attempt: int) -> list[Sample]:
        """For each slot of a training iteration another row of the data set of its prompt, in the order of `slots`.

        Args:
            slots: each once.
            attempt: 1 for the first substitutes.

        Raises:
            ServerError: the server has fewer substitutes, refuses, now has another config, or does not answer for too
                long.
        """
        meta = self._known_meta()
        if attempt > meta.substitutes:
            raise ServerError(
                f"{self._transport.place} has {meta.substitutes} substitutes for each prompt, but number {attempt} is "
                "needed; raise `substitutes` in its config (before protocol 1.1 there are none)"
            )
        samples: list[Sample] = []
        for start in range(0, len(slots), meta.limits.max_batch_size):
            page = list(slots[start : start + meta.limits.max_batch_size])
            samples += self._ask(self._request(iteration, slots=page, attempt=attempt))
        return samples

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        """One result per item, in item order.

        Items that the server does not finish in time are asked for again, within `retry_seconds`. An item too large for
        any request gets a result of status error; the others are not affected.

        Args:
            label: names the call within the run and rank, such as "train-12-3".

        Raises:
            ServerError: the server refuses, now has another config, or does not answer for too long.
        """
        meta = self._known_meta()
        if is_first_version(meta):
            items = [item.model_copy(update={"attempt": 0, "rollout": None}) for item in items]
        assert self._config_id is not None  # set together with the description
        described = Label(iteration, label, self._run_id, self._rank, self._config_id)
        results: list[GradeResult] = []
        for call in grade_calls(described, items, meta.limits):
            if isinstance(call, GradeItem):
                results.append(_too_large(call))
            else:
                results += self._grade_all(call)
        return results

    def report_step(
        self, step: int, numbers: dict[str, float | None], groups: Sequence[GroupReport], first: bool
    ) -> None:
        """Report an optimizer step for the server's page, in one try; groups beyond the server's limit are left out.

        Args:
            first: whether what the run reported of later steps is to be forgotten.

        Raises:
            WrongServerError: the server does not take reports, as before protocol 1.1.
            ServerError: the server refuses, now has another config, or does not answer.
        """
        meta = self._known_meta()
        if is_first_version(meta):
            raise WrongServerError(f"{self._transport.place} takes no reports of steps (its protocol is 1.0)")
        shown = list(groups[: meta.limits.max_items])
        report = StepReport(
            run_id=self._run_id, config_id=self._config_id, step=step, numbers=numbers, groups=shown, first=first
        )
        body = encoded(report.model_dump(exclude_defaults=True))
        seconds = self._request_seconds or _REPORT_SECONDS
        self._transport.send("/steps", body, seconds, bytes, patience=0)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def _request(self, iteration: int, **wanted: Any) -> SampleRequest:
        return SampleRequest(iteration=iteration, config_id=self._config_id, run_id=self._run_id, **wanted)

    def _ask(self, request: SampleRequest) -> list[Sample]:
        # A server of protocol 1.0 refuses the keys of 1.1, which have no value in its requests.
        body, place = encoded(request.model_dump(exclude_defaults=True)), self._transport.place
        return self._transport.send(
            "/sample", body, self._try_seconds(), lambda content: read_samples(content, request, place)
        )

    def _grade_all(self, call: GradeCall) -> list[GradeResult]:
        """Results of a call, repeated while the server needs more time for some items than one request allows."""
        end = time.monotonic() + self._retry_seconds
        item_ids = [item.item_id for item in call.items]
        config_id, place = self._config_id or "", self._transport.place

        def read(content: bytes) -> list[GradeResult]:
            return read_results(content, call.request_id, item_ids, config_id, place)

        while True:
            results = self._transport.send("/grade", call.body, self._try_seconds(), read)
            late = sum(map(is_late, results))
            if not late or time.monotonic() >= end:
                return results
            logger.warning("%s needs more time for %d of %d completions", place, late, len(results))

    def _fetch_meta(self, patience: float | None) -> Meta:
        seconds, place = self._request_seconds or _META_SECONDS, self._transport.place
        meta = self._transport.send("/meta", None, seconds, lambda content: read_meta(content, place), patience)
        require_config(meta.config_id, self._config_id, place)
        self._config_id, self._meta = meta.config_id, meta
        return meta

    def _known_meta(self) -> Meta:
        return self._meta or self.meta()

    def _try_seconds(self) -> float:
        promised = min(self._known_meta().limits.grade_timeout_seconds, _LONGEST_PROMISE_SECONDS)
        return self._request_seconds or promised + _MARGIN_SECONDS


def _too_large(item: GradeItem) -> GradeResult:
    reason = "the completion exceeds the dataserver's request size limit (limits.body_mb)"
    return GradeResult(item_id=item.item_id, status="error", reward=None, reason=reason, components={})
