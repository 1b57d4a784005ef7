"""Messages between a trainer and an engine in a process of its own: JSON and arrays of numbers, never pickles."""

import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from posttrain.conversation.masks import TokenRow
from posttrain.inference.engine import Completion, GenerationRequest, Key, StopReason

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Message:
    """A message: its kind, values that JSON can hold, and arrays."""

    kind: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


def send(connection: Connection, message: Message) -> None:
    """Send a message; OSError if the other side is gone, TimeoutError as `limit_silence`."""
    with _in_time():
        connection.send_bytes(json.dumps({"kind": message.kind, **message.facts}).encode())
        connection.send_bytes(save(dict(message.arrays)))


def receive(connection: Connection) -> Message:
    """Wait for a message; EOFError or OSError if the other side is gone, TimeoutError as `limit_silence`."""
    with _in_time():
        facts = json.loads(connection.recv_bytes())
        return Message(facts.pop("kind"), facts, load(connection.recv_bytes()))


def limit_silence(connection: Connection, seconds: float) -> None:
    """Let a send or a wait at this end raise TimeoutError once nothing got through for `seconds`."""
    limit = struct.pack("ll", *divmod(max(1, round(seconds * 1e6)), 10**6))
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            same.setsockopt(socket.SOL_SOCKET, option, limit)


@contextmanager
def _in_time() -> Iterator[None]:
    try:
        yield
    except BlockingIOError:
        raise TimeoutError from None


def request_arrays(requests: Sequence[GenerationRequest]) -> Arrays:
    """The requests as arrays, which `read_requests` reads."""
    return {
        "prompts": _flat([request.prompt_ids for request in requests], np.int64),
        "prompt_lengths": _lengths([request.prompt_ids for request in requests]),
        "seeds": _flat([request.seeds for request in requests], np.int64),
        "seed_counts": _lengths([request.seeds for request in requests]),
    }


def read_requests(arrays: Arrays) -> list[GenerationRequest]:
    """The requests of a message."""
    prompts = _split(arrays["prompts"], arrays["prompt_lengths"])
    seeds = _split(arrays["seeds"], arrays["seed_counts"])
    return [GenerationRequest(prompt, several) for prompt, several in zip(prompts, seeds, strict=True)]


def completion_arrays(completions: Sequence[tuple[Key, Completion]]) -> Arrays:
    """The completions as arrays, which `read_completions` reads; log-probabilities keep 32 bits."""
    rows = [completion for _, completion in completions]
    arrays: dict[str, npt.NDArray[Any]] = {
        "keys": np.array([key for key, _ in completions], dtype=np.int64).reshape(-1, 2),
        "ids": _flat([row.token_ids for row in rows], np.int64),
        "lengths": _lengths([row.token_ids for row in rows]),
        "reasons": np.array([_REASONS.index(row.stop_reason) for row in rows], dtype=np.int64),
    }
    if any(row.logprobs is not None for row in rows):
        arrays["logprobs"] = _flat([row.logprobs or () for row in rows], np.float32)
    return arrays


def read_completions(arrays: Arrays) -> list[tuple[Key, Completion]]:
    """The completions of a message."""
    ids, logprobs = _split(arrays["ids"], arrays["lengths"]), None
    if "logprobs" in arrays:
        logprobs = _split(arrays["logprobs"], arrays["lengths"])
    return [
        ((place, number), Completion(tokens, _REASONS[reason], None if logprobs is None else logprobs[row]))
        for row, ((place, number), tokens, reason) in enumerate(
            zip(arrays["keys"].tolist(), ids, arrays["reasons"].tolist(), strict=True)
        )
    ]


def row_arrays(rows: Sequence[TokenRow]) -> Arrays:
    """Rows of tokens as arrays, which `read_rows` reads."""
    return {
        "ids": _flat([row.ids for row in rows], np.int64),
        "trained": _flat([row.trained for row in rows], np.bool_),
        "lengths": _lengths([row.ids for row in rows]),
    }


def read_rows(arrays: Arrays) -> list[TokenRow]:
    """The rows of tokens of a message."""
    ids, trained = (_split(arrays[name], arrays["lengths"]) for name in ("ids", "trained"))
    return [TokenRow(list(tokens), list(flags)) for tokens, flags in zip(ids, trained, strict=True)]


def lists_as_arrays(lists: Sequence[Sequence[float]]) -> Arrays:
    """Lists of numbers as arrays, which `read_lists` reads."""
    return {"values": _flat(lists, np.float64), "lengths": _lengths(lists)}


def read_lists(arrays: Arrays) -> list[list[float]]:
    """The lists of numbers of a message."""
    return [list(values) for values in _split(arrays["values"], arrays["lengths"])]


_REASONS = list(StopReason)


def _flat(rows: Sequence[Sequence[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.array([value for row in rows for value in row], dtype=dtype)


def _lengths(rows: Sequence[Sequence[Any]]) -> npt.NDArray[Any]:
    return np.array([len(row) for row in rows], dtype=np.int64)


def _split(flat: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> list[tuple[Any, ...]]:
    """The rows of `flat` as tuples of Python numbers."""
    values, ends = flat.tolist(), np.cumsum(lengths).tolist()
    return [tuple(values[end - length : end]) for end, length in zip(ends, lengths.tolist(), strict=True)]
