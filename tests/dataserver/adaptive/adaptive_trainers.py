"""Config files with adaptive sampling, and trainers that carry on when a server is killed."""

import json
import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

import httpx
import yaml
from sqlalchemy import select

from dataserver.dataserver_cases import questions, write_rows
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import grades, open_database, plans

SLOTS = 8
ADAPTIVE: Mapping[str, Any] = {
    "lag": 1,
    "pools": {"solved_weight": 0.0, "min_grades": 2},
    "easy": {"dataset": "easy", "share": {"0": 0.25, "10": 0.0}},
    "replay": {"share": {"0": 0.0, "4": 0.5}},
}


def write_config(
    folder: Path,
    adaptive: Mapping[str, Any] | None = ADAPTIVE,
    validation_fraction: float | None = None,
    url: str | None = None,
) -> Path:
    """A config file with its data beside it; without `url`, the journal is a file there too."""
    folder.mkdir()
    sizes = {"hard": 60, "easy": 10}
    for name, size in sizes.items():
        write_rows(folder / f"{name}.jsonl", questions(name, size))
    graded = {"graders": {"string_exact": 1}, "validation_fraction": validation_fraction}
    datasets = {name: {"path": f"{name}.jsonl", **graded} for name in sizes}
    mix = {"hard": 3, "easy": 1}
    config = {
        "datasets": datasets,
        "stages": [{"name": "all", "until_step": 100, "mix": mix}],
        "prompts_per_iteration": SLOTS,
        "listen": {"port": 0},
        "limits": {"workers": 1},
        "journal": {"url": url},
        **({"adaptive": adaptive} if adaptive is not None else {}),
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def completion(sample: Mapping[str, Any], generation: int) -> str:
    """Always right, never right, or wrong only in generation 0, by a hash of the sample."""
    name, number = sample["messages"][-1]["content"].split()
    kind = blake2b(f"{name} {number}".encode(), digest_size=1).digest()[0] % 3
    return number if kind == 0 or (kind == 1 and generation) else "no"


def grade_request(answer: Mapping[str, Any], run_id: str, generations: int = 2) -> dict[str, Any]:
    """A /grade request for completions of all samples in an answer from /sample."""
    items = [
        {"item_id": f"{sample['slot']}-{number}", "sample_id": sample["sample_id"], "slot": sample["slot"],
         "completion": completion(sample, number)}
        for sample in answer["samples"]
        for number in range(generations)
    ]  # fmt: skip
    return {"iteration": answer["iteration"], "request_id": f"{answer['iteration']}", "run_id": run_id, "items": items}


class Trainers:
    """One thread per run, which samples and grades iteration by iteration and retries failed requests."""

    def __init__(self, iterations: int, *run_ids: str) -> None:
        self._iterations = iterations
        self._url = ""
        self._lock = Lock()
        self._stopped = Event()
        self.samples: dict[tuple[str, int], list[Any]] = {}
        """The samples of each iteration of each run."""
        self.acknowledged: set[tuple[str, str]] = set()
        """Requests, by run and id, whose grades a trainer received."""
        self._threads = [Thread(target=self._train, args=(run_id,)) for run_id in run_ids]

    def __enter__(self) -> "Trainers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.wait()

    def use(self, url: str) -> None:
        """Talk to this server from now on."""
        self._url = url

    def wait(self) -> None:
        """Wait until all iterations are done."""
        for thread in self._threads:
            thread.join()

    def _train(self, run_id: str) -> None:
        with httpx.Client(timeout=20, trust_env=False) as client:
            for iteration in range(self._iterations):
                body = {"iteration": iteration, "batch_size": SLOTS, "run_id": run_id}
                answer = self._ask(client, "/sample", body)
                request = grade_request(answer, run_id)
                self._ask(client, "/grade", request)
                with self._lock:
                    self.samples[run_id, iteration] = answer["samples"]
                    self.acknowledged.add((run_id, request["request_id"]))

    def _ask(self, client: httpx.Client, path: str, body: Mapping[str, Any]) -> Any:
        while not self._stopped.is_set():
            try:
                response = client.post(self._url + path, json=body)
                if response.status_code == 200:
                    return response.json()
            except (httpx.TransportError, httpx.UnsupportedProtocol):
                pass
            time.sleep(0.02)
        raise SystemExit


def kept_plans(journal: JournalConfig) -> dict[tuple[str, int], Any]:
    """All stored plans, by run and iteration."""
    engine = open_database(journal)
    with engine.connect() as connection:
        rows = list(connection.execute(select(plans.c.run_id, plans.c.iteration, plans.c.plan)))
    engine.dispose()
    assert len({row[:2] for row in rows}) == len(rows)
    return {(run_id, iteration): plan for run_id, iteration, plan in rows}


def kept_rewards(journal: JournalConfig) -> dict[tuple[str, str, str], tuple[str, float]]:
    """Data set, row and reward of all graded completions, by run, request and item."""
    engine = open_database(journal)
    columns = ("run_id", "request_id", "item_id", "dataset", "row_key", "reward")
    with engine.connect() as connection:
        rows = list(connection.execute(select(*(grades.c[name] for name in columns))))
    engine.dispose()
    return {tuple(row[:3]): tuple(row[3:]) for row in rows}


def without_config_id(body: bytes) -> bytes:
    """A server's answer as sent, without its config_id."""
    return body.replace(json.loads(body)["config_id"].encode(), b"")
