"""Grader `http`: take the scores from the user's own HTTP service."""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from posttrain.dataserver.graders.base import Score, checked_score
from posttrain.dataserver.graders.remote import CallFailedError, Failure, Outcome, RemoteGrader
from posttrain.dataserver.graders.text.completions import GradeInput

if TYPE_CHECKING:
    import httpx

    from posttrain.dataserver.graders.calls import Caller

_PROTOCOL = 1


class HttpGrader(RemoteGrader):
    """The score given by a service of yours.

    It receives `POST {"protocol": 1, "items": [{"item_id", "prompt", "completion", "answer", "reasoning", "gold",
    "record", "completion_tokens"}]}` and answers `{"results": [{"item_id", "score", "detail"}]}` in any order, with a
    score in [0, 1]; or, instead of a score, `"status": "abstain"` or `"status": "error"`. The detail is optional.
    A completion that does not get exactly one such result gets an error; the others are not affected.
    """

    type: Literal["http"] = "http"

    batch_size: int = Field(default=32, ge=1, le=10_000)
    """Maximum number of completions per call."""

    async def score_all(self, items: Sequence[GradeInput], client: "httpx.AsyncClient") -> list[Outcome]:
        """Score completions in concurrent calls; a failed call or an invalid result affects only its own items."""
        service = self.caller(client)
        batches = [items[start : start + self.batch_size] for start in range(0, len(items), self.batch_size)]
        return list(chain.from_iterable(await asyncio.gather(*(_score(batch, service, client) for batch in batches))))


async def _score(batch: Sequence[GradeInput], service: "Caller", client: "httpx.AsyncClient") -> list[Outcome]:
    written = {str(number): _written(str(number), item) for number, item in enumerate(batch)}
    sent = {item_id: text for item_id, text in written.items() if text is not None}
    found: Mapping[str, Outcome] = {}
    if sent:
        try:
            body = f'{{"protocol": {_PROTOCOL}, "items": [{", ".join(sent.values())}]}}'
            found = await service.post(client, body, lambda reply: _outcomes(reply, service))
        except CallFailedError as error:
            found = dict.fromkeys(sent, Failure("error", str(error)))
    unsent = Failure("error", "its record cannot be written as JSON")
    missing = Failure("error", "the service returned no result for it")
    return [found.get(item_id, missing) if item_id in sent else unsent for item_id in written]


def _written(item_id: str, item: GradeInput) -> str | None:
    """The item as JSON text; None if its record contains something that JSON cannot represent."""
    try:
        return json.dumps(
            {
                "item_id": item_id,
                "prompt": item.prompt,
                "completion": item.completion,
                "answer": item.answer,
                "reasoning": item.reasoning,
                "gold": item.gold,
                "record": dict(item.record),
                "completion_tokens": item.completion_tokens,
            },
            allow_nan=False,
        )
    except (TypeError, ValueError, RecursionError):
        return None


def _outcomes(reply: object, service: "Caller") -> dict[str, Outcome]:
    results = reply.get("results") if isinstance(reply, dict) else None
    if not isinstance(results, list):
        raise CallFailedError(f"{service.grader.place} sent a response without a list of results")
    named = [(result["item_id"], result) for result in results if isinstance(result, dict) and _id_of(result)]
    twice = {item_id for item_id, count in Counter(item_id for item_id, _ in named).items() if count > 1}
    return {
        item_id: Failure("error", "the service returned more than one result for it")
        if item_id in twice
        else _outcome(result, service)
        for item_id, result in named
    }


def _id_of(result: Mapping[str, Any]) -> str | None:
    item_id = result.get("item_id")
    return item_id if isinstance(item_id, str) else None


def _outcome(result: Mapping[str, Any], service: "Caller") -> Outcome:
    hide = service.grader.hide_token
    detail = result.get("detail")
    detail = service.clean(detail) if isinstance(detail, str) else ""
    match result.get("status"), result.get("score"):
        case ("abstain" | "error") as status, None:
            return Failure(status, detail or f"the service's status is {status}")
        case (("ok" | None), score):
            try:
                # The error shows a truncated non-number: hide the token first, while it is still whole.
                checkable = score if isinstance(score, int | float) else hide(str(score))
                return checked_score(Score(checkable, detail))  # type: ignore[arg-type]
            except ValueError as error:
                return Failure("error", service.clean(str(error)))
    return Failure("error", "the service returned a status that is unknown, or does not match the score")
