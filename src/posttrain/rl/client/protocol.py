"""Build requests within the server's limits, and validate its answers.

An answer is accepted only if it is complete, in order and in range.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from posttrain.base.http import PassingError
from posttrain.base.text import first_of
from posttrain.dataserver.schemas import (
    PROTOCOL_VERSION,
    GradeItem,
    GradeResponse,
    GradeResult,
    Limits,
    Meta,
    Sample,
    SampleRequest,
    SampleResponse,
)
from posttrain.errors import ServerError
from posttrain.rl.client.transport import WrongServerError, config_changed, quoted

Answer = TypeVar("Answer", bound=BaseModel)

_LONGEST_ID = 200
_CLOSING = b"]}"
_LATE = "deadline"
_LARGEST_COUNT = 2**62


@dataclass(frozen=True)
class Label:
    """Identifies a call to `/grade`: everything but the completions."""

    iteration: int
    name: str
    """Distinguishes the call from the others of the run, e.g. "train-12-3"."""
    run_id: str
    rank: int
    config_id: str

    def opening(self, request_id: str) -> bytes:
        """The body of a request up to its items."""
        head = {
            "iteration": self.iteration,
            "request_id": request_id,
            "run_id": self.run_id,
            "config_id": self.config_id,
            "items": [],
        }
        return encoded(head)[: -len(_CLOSING)]

    def request_id(self, chunk: int, items: Sequence[bytes]) -> str:
        """The id of one request: the same for the same content, also after a resume, and different for other content.

        A run resumed from a checkpoint may generate other completions than the first time. Under an id made of the
        names alone, the server would refuse them.
        """
        parts = [encoded([self.run_id, self.rank, self.name, chunk, self.iteration]), *items]
        digest = hashlib.blake2b(b"\n".join(parts), digest_size=8).hexdigest()
        return _shortened(f"{self.run_id}/{self.name}", f"/{self.rank}.{chunk}-{digest}")


@dataclass(frozen=True)
class GradeCall:
    """One request to `/grade`."""

    request_id: str
    items: Sequence[GradeItem]
    body: bytes


def grade_calls(label: Label, items: Sequence[GradeItem], limits: Limits) -> Iterator[GradeCall | GradeItem]:
    """Split the items, in order, into requests that the server accepts; an item too large for any is yielded alone."""
    # Ids are limited in characters, not bytes: a shorter number leaves more of the name, which may be more bytes.
    longest_ids = [label.request_id(number, []) for number in (0, len(items))]
    room = limits.max_body_bytes - max(len(label.opening(each)) for each in longest_ids) - len(_CLOSING)
    chunk: list[GradeItem] = []
    parts: list[bytes] = []
    number = size = 0
    for item in items:
        part = encoded(item.model_dump(exclude_defaults=True))
        fits = len(part) <= room
        if chunk and (not fits or len(chunk) == limits.max_items or size + len(part) > room):
            yield _call(label, number, chunk, parts)
            number, size, chunk, parts = number + 1, 0, [], []
        if not fits:
            yield item
            continue
        chunk.append(item)
        parts.append(part)
        size += len(part) + 1  # and a comma
    if chunk:
        yield _call(label, number, chunk, parts)


def encoded(value: Any) -> bytes:
    """The value as JSON in UTF-8, each unpaired surrogate replaced by U+FFFD, as the server would read it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def bounded_run_id(run_id: str) -> str:
    """The name of a run, shortened to the protocol's limit."""
    if len(run_id) <= _LONGEST_ID:
        return run_id
    digest = hashlib.blake2b(encoded(run_id), digest_size=8).hexdigest()
    return _shortened(run_id, f"-{digest}")


def _call(label: Label, number: int, items: Sequence[GradeItem], parts: Sequence[bytes]) -> GradeCall:
    request_id = label.request_id(number, parts)
    return GradeCall(request_id, items, label.opening(request_id) + b",".join(parts) + _CLOSING)


def _shortened(head: str, tail: str) -> str:
    return head[: _LONGEST_ID - len(tail)] + tail


def read_meta(content: bytes, place: str) -> Meta:
    """Parse the server's description of itself.

    Raises:
        PassingError: the answer is cut short or does not fit its own protocol version.
        WrongServerError: what answers is not a dataserver.
        ServerError: it speaks another version of the protocol.
    """
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        raise PassingError(f"{place} answered /meta with something that is not JSON") from None
    version = told.get("protocol_version") if isinstance(told, dict) else None
    if not isinstance(version, str):
        raise WrongServerError(
            f"{place} does not identify itself as one; is this the address of a toolkit-rl-dataserver?"
        )
    if version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
        raise ServerError(
            f"{place} speaks protocol {quoted(version)}, this trainer {PROTOCOL_VERSION}; install the same version of "
            "posttrain-toolkit on both sides"
        )
    meta = _parsed(Meta, content, f"{place} answered /meta")
    # Numbers that the trainer counts and divides by.
    counts = {name: getattr(meta, name) for name in ("prompts_per_iteration", "iteration_stride", "total_iterations")}
    counts |= {f"limits.{name}": value for name, value in meta.limits}
    # These may be 0 and null.
    counts |= {"substitutes": meta.substitutes + 1, "lag": 1 if meta.lag is None else meta.lag}
    for name, value in counts.items():
        if not 0 < value <= _LARGEST_COUNT:
            raise WrongServerError(
                f"{place} answered /meta with an impossible value for {name}; is it a toolkit-rl-dataserver?"
            )
    return meta


def is_first_version(meta: Meta) -> bool:
    """Whether the server speaks protocol 1.0, which has no substitutes, no rollout of an item and no `/steps`."""
    return meta.protocol_version == "1.0"


def read_samples(content: bytes, request: SampleRequest, place: str) -> list[Sample]:
    """The requested prompts, in the order of the request's slots.

    Raises:
        PassingError: the answer cannot be read, or has other prompts.
        ServerError: they come from another config.
    """
    asked = f"{place} answered /sample"
    answer = _parsed(SampleResponse, content, asked)
    require_config(answer.config_id, request.config_id, place)
    slots = list(request.wanted)
    if answer.iteration != request.iteration:
        raise PassingError(f"{asked} for iteration {answer.iteration} instead of {request.iteration}")
    if [sample.slot for sample in answer.samples] != slots:
        told = _listed([sample.slot for sample in answer.samples])
        raise PassingError(f"{asked} with slots {told} instead of {_listed(slots)}")
    return answer.samples


def read_results(
    content: bytes, request_id: str, item_ids: Sequence[str], config_id: str, place: str
) -> list[GradeResult]:
    """One result per item, in the order of the items.

    Raises:
        PassingError: the answer cannot be read or belongs to another request; a result is missing, unasked for or out
            of order; or a reward does not match its status.
        ServerError: they come from another config.
    """
    asked = f"{place} answered /grade"
    answer = _parsed(GradeResponse, content, asked)
    require_config(answer.config_id, config_id, place)
    if answer.request_id != request_id:
        told = quoted(repr(answer.request_id))
        raise PassingError(f"{asked} for request {told} instead of {request_id!r}")
    told = [result.item_id for result in answer.results]
    if told != list(item_ids):
        raise PassingError(f"{asked} with {_difference(told, item_ids)}")
    for result in answer.results:
        if not _is_consistent(result):
            raise PassingError(f"{asked} with reward {result.reward} and status {result.status}, which do not match")
    return answer.results


def is_late(result: GradeResult) -> bool:
    """Whether the server ran out of time for the item; asked again, it may finish."""
    return result.status == "abstain" and result.reason.startswith(_LATE)


def _parsed(model: type[Answer], content: bytes, asked: str) -> Answer:
    try:
        # Strict: `true` and "0.5" are not rewards.
        return model.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = quoted(".".join(map(str, first["loc"])))
        raise PassingError(f"{asked} with an invalid body: {f'{where}: ' if where else ''}{first['msg']}") from None


def require_config(told: str, wanted: str | None, place: str) -> None:
    """Raise ServerError if the server has another config than `wanted`; None accepts any."""
    if wanted is not None and told != wanted:
        raise config_changed(place, f"its config_id is {quoted(told)}, but the run has {wanted}")


def _difference(told: Sequence[str], asked: Sequence[str]) -> str:
    if twice := [item_id for item_id, count in Counter(told).items() if count > 1]:
        return f"more than one result for {_listed(twice)}"
    if missing := set(asked) - set(told):
        return f"no result for {_listed(sorted(missing))}"
    if unasked := set(told) - set(asked):
        return f"results for {_listed(sorted(unasked))}, which were not requested"
    return "its results out of order"


def _is_consistent(result: GradeResult) -> bool:
    if result.status == "ok":
        return result.reward is not None and 0 <= result.reward <= 1
    return result.reward is None


def _listed(values: Sequence[object]) -> str:
    return first_of([quoted(repr(value)) for value in values], 3) or "none"
