"""What a trainer believes of a server's answers: nothing that is not complete, in order and in range."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from posttrain.base.text import first_of
from posttrain.dataserver.schemas import (
    PROTOCOL_VERSION,
    GradeResponse,
    GradeResult,
    Meta,
    Sample,
    SampleRequest,
    SampleResponse,
)
from posttrain.errors import ServerError
from posttrain.rl.client.errors import PassingError, WrongServerError, as_told, config_changed

Answer = TypeVar("Answer", bound=BaseModel)

_LATE = "deadline"
_LARGEST_COUNT = 2**62


def read_meta(content: bytes, place: str) -> Meta:
    """How the server describes itself.

    Raises:
        PassingError: the answer is cut short or does not fit its own protocol version.
        WrongServerError: whoever answers is no dataserver.
        ServerError: it speaks another version of the protocol.
    """
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        raise PassingError(f"{place} answered /meta with something that is no JSON") from None
    version = told.get("protocol_version") if isinstance(told, dict) else None
    if not isinstance(version, str):
        raise WrongServerError(
            f"{place} does not describe itself as one; is this the address of a toolkit-rl-dataserver?"
        )
    if version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
        raise ServerError(
            f"{place} speaks protocol {as_told(version)}, this trainer {PROTOCOL_VERSION}; install the same version of "
            "posttrain-toolkit on both sides"
        )
    meta = _parsed(Meta, content, f"{place} answered /meta")
    for name, value in _counts(meta).items():
        if not 0 < value <= _LARGEST_COUNT:
            raise WrongServerError(
                f"{place} answered /meta with an impossible value for {name}; is it a toolkit-rl-dataserver?"
            )
    return meta


def _counts(meta: Meta) -> dict[str, float]:
    """What a trainer counts and divides by."""
    limits = {f"limits.{name}": value for name, value in meta.limits}
    named = ("prompts_per_iteration", "iteration_stride", "total_iterations")
    return {**{name: getattr(meta, name) for name in named}, **limits}


def read_samples(content: bytes, request: SampleRequest, place: str) -> list[Sample]:
    """The prompts that were asked for, in slot order.

    Raises:
        PassingError: they are not.
        ServerError: they come from another config.
    """
    asked = f"{place} answered /sample"
    answer = _parsed(SampleResponse, content, asked)
    _require_config(answer.config_id, request.config_id, place)
    slots = list(range(request.offset, request.offset + request.batch_size))
    if answer.iteration != request.iteration:
        raise PassingError(f"{asked} for iteration {answer.iteration} in place of {request.iteration}")
    if [sample.slot for sample in answer.samples] != slots:
        told = _listed([sample.slot for sample in answer.samples])
        raise PassingError(f"{asked} with slots {told} in place of {slots[0]} to {slots[-1]}")
    return answer.samples


def read_results(
    content: bytes, request_id: str, item_ids: Sequence[str], config_id: str, place: str
) -> list[GradeResult]:
    """One result per item, in the order of the items.

    Raises:
        PassingError: the results are those of another request, or one of them is missing, unasked or in disorder, or
            its reward does not go with its status.
        ServerError: they come from another config.
    """
    asked = f"{place} answered /grade"
    answer = _parsed(GradeResponse, content, asked)
    _require_config(answer.config_id, config_id, place)
    if answer.request_id != request_id:
        told = as_told(repr(answer.request_id))
        raise PassingError(f"{asked} for the request {told} in place of {request_id!r}")
    told = [result.item_id for result in answer.results]
    if told != list(item_ids):
        raise PassingError(f"{asked} with {_difference(told, item_ids)}")
    for result in answer.results:
        if not _is_consistent(result):
            raise PassingError(f"{asked} with the reward {result.reward} and status {result.status}: no such pair")
    return answer.results


def is_late(result: GradeResult) -> bool:
    """Whether the server was not done with the item in time; if asked again, it may be."""
    return result.status == "abstain" and result.reason.startswith(_LATE)


def _parsed(model: type[Answer], content: bytes, asked: str) -> Answer:
    try:
        # Strict: `true` and "0.5" are no rewards.
        return model.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = as_told(".".join(map(str, first["loc"])))
        raise PassingError(f"{asked} with what cannot be read: {f'{where}: ' if where else ''}{first['msg']}") from None


def _require_config(told: str, wanted: str | None, place: str) -> None:
    if wanted is not None and told != wanted:
        raise config_changed(place, f"its config_id is {as_told(told)}, that of the run {wanted}")


def _difference(told: Sequence[str], asked: Sequence[str]) -> str:
    if twice := [item_id for item_id, count in Counter(told).items() if count > 1]:
        return f"more than one result for {_listed(twice)}"
    if missing := set(asked) - set(told):
        return f"no result for {_listed(sorted(missing))}"
    if unasked := set(told) - set(asked):
        return f"results for {_listed(sorted(unasked))}, which nobody asked for"
    return "its results in disorder"


def _is_consistent(result: GradeResult) -> bool:
    if result.status == "ok":
        return result.reward is not None and 0 <= result.reward <= 1
    return result.reward is None


def _listed(values: Sequence[object]) -> str:
    return first_of([as_told(repr(value)) for value in values], 3) or "none"
