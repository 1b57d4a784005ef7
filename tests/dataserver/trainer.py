"""A trainer as a dataserver sees it: it requests prompts, sends completions, and retries until it gets an answer."""

import random
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from dataserver.serving import gold_of, good
from posttrain.dataserver.schemas import Sample

_PATIENCE_SECONDS = 60.0


class Step(NamedTuple):
    """What a trainer saw of one iteration."""

    sampled: Any
    """The answer to /sample."""
    rewards: list[tuple[str, str, float | None]]
    """Item, status and reward, in the order of the answer."""


def train(*urls: str, timeout: float = 60.0) -> list[Step]:
    """Run eight iterations, asking the servers in turn; a request is retried after `timeout` seconds."""
    clients = [httpx.Client(base_url=url, timeout=timeout, trust_env=False) for url in urls]
    turns = (client for _ in range(10_000) for client in clients)
    seen = []
    for iteration in range(8):
        sampled = _ask(turns, "/sample", {"iteration": iteration, "batch_size": 8})
        graded = _ask(turns, "/grade", grade_request(iteration, sampled))
        seen.append(Step(sampled, [(one["item_id"], one["status"], one["reward"]) for one in graded["results"]]))
    for client in clients:
        client.close()
    return seen


def grade_request(iteration: int, sampled: Any) -> dict[str, Any]:
    """Completions as a model might write them: some right, some wrong, some repeated; fixed per iteration."""
    choice = random.Random(iteration)
    items = [
        {
            "item_id": f"{sample.slot}-{try_}",
            "sample_id": sample.sample_id,
            "completion": gold_of(sample) if choice.random() < 0.4 else f"sleep 0.02 wrong {choice.randrange(10)}",
            "slot": sample.slot,
        }
        for sample in map(Sample.model_validate, sampled["samples"])
        for try_ in range(4)
    ]
    return {"iteration": iteration, "request_id": f"step {iteration}", "items": items}


Row = tuple[str, str, str, str, str, float | None]
"""Request, item, sample, completion, status and reward."""


def rows_of(seen: Sequence[Step]) -> list[Row]:
    """The rows that the journal must contain after such a run."""
    rows = []
    for iteration, step in enumerate(seen):
        request = grade_request(iteration, step.sampled)
        for item, (item_id, status, reward) in zip(request["items"], step.rewards, strict=True):
            rows.append((request["request_id"], item_id, item["sample_id"], item["completion"], status, reward))
    return sorted(rows)


def journal(folder: Path) -> list[Row]:
    """The rows in the journal beside a config."""
    with closing(sqlite3.connect(folder / "journal.sqlite")) as database:
        query = "SELECT request_id, item_id, sample_id, completion, status, reward FROM grades ORDER BY 1, 2"
        return database.execute(query).fetchall()


def _ask(turns: Any, path: str, body: dict[str, Any]) -> Any:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            response = next(turns).post(path, json=body)
            if response.status_code < 500 and response.status_code != 429:
                return good(response)
        except (httpx.TransportError, ValueError):
            pass  # no server, or a truncated answer
        time.sleep(0.02)
    raise AssertionError(f"nobody answers {path}")
