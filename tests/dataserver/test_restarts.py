"""A server that is killed, stopped or cannot start: nothing that was answered changes, and nothing is left behind."""

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from dataserver.serving import Server, a_config, are_gone, gold_of, good, serving, until
from running import BIN
from toolkit.dataserver.schemas import Sample

ITERATIONS = range(8)


def grade_request(iteration: int, samples: Sequence[Sample]) -> dict[str, Any]:
    """Completions as a model might write them: some right, some wrong, the same for the same iteration."""
    choice = random.Random(iteration)
    items = [
        {
            "item_id": f"{sample.slot}-{try_}",
            "sample_id": sample.sample_id,
            "completion": gold_of(sample) if choice.random() < 0.5 else f"wrong {choice.randrange(3)}",
            "slot": sample.slot,
        }
        for sample in samples
        for try_ in range(4)
    ]
    return {"iteration": iteration, "request_id": f"step {iteration}", "items": items}


def train(client: httpx.Client) -> list[tuple[Any, Any]]:
    """What a trainer sees over all iterations; it asks again as long as nobody answers."""
    seen = []
    for iteration in ITERATIONS:
        sampled = ask(client, "/sample", {"iteration": iteration, "batch_size": 8})
        samples = [Sample.model_validate(sample) for sample in sampled["samples"]]
        graded = ask(client, "/grade", grade_request(iteration, samples))
        seen.append((sampled, [(result["item_id"], result["status"], result["reward"]) for result in graded["results"]]))
    return seen


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            response = client.post(path, json=body)
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if response.status_code != 503:
            return good(response)
        time.sleep(0.05)
    raise AssertionError(f"nobody answers {path}")


def journal(folder: Path) -> list[tuple[Any, ...]]:
    """What the journal keeps, in an order that does not depend on when it was written."""
    with closing(sqlite3.connect(folder / "journal.sqlite")) as database:
        columns = "request_id, item_id, sample_id, slot, completion, status, reward"
        return database.execute(f"SELECT {columns} FROM grades ORDER BY request_id, item_id").fetchall()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, Any]]:
    """What a trainer sees when all goes well."""
    with serving(a_config(tmp_path_factory.mktemp("undisturbed") / "config")) as server:
        return train(server.client)


def test_a_trainer_does_not_notice_that_the_server_was_killed(
    tmp_path: Path, undisturbed: list[tuple[Any, Any]]
) -> None:
    config = a_config(tmp_path / "config")
    with serving(config) as server:
        port = int(server.url.rpartition(":")[2])
        with ThreadPoolExecutor() as threads:
            training = threads.submit(train, server.client)
            for _ in range(2):
                until(lambda: (config.parent / "calls").exists())
                time.sleep(random.Random(1).uniform(0, 0.05))
                ...
