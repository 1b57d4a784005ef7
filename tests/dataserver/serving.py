"""Dataservers as real processes: write a config, start a server, send it requests, stop or kill it."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from posttrain.dataserver.schemas import GradeResponse, Sample, SampleResponse
from running import BIN

_START_SECONDS = 60.0

_FACTOR = 1_001_001
_numbers = count()

# A grader that logs each call to a file, then does what the completion says.
_ORDERS = """
import ctypes
import os
import sys
import time
from pathlib import Path

from posttrain.dataserver.graders.base import Abstain, Score

FOLDER = Path(__file__).parent

while (FOLDER / "wait").exists():
    time.sleep(0.01)


def score(item):
    with open(FOLDER / "calls", "a") as file:
        file.write(repr(item.completion[:50]) + "\\n")
    order, _, rest = item.completion.partition(" ")
    if order == "sleep":
        time.sleep(float(rest.split()[0]))
    elif order == "stick":
        ctypes.PyDLL(None).sleep(60)
    elif order == "raise":
        raise ValueError(rest)
    elif order == "raise-half-a-pair":
        raise ValueError("\\udcff")
    elif order == "say-half-a-pair":
        return Score(0.5, "\\ud800 and NUL \\0")
    elif order == "abstain":
        raise Abstain(rest)
    elif order == "exit":
        os._exit(3)
    return float(str(item.gold) in item.completion.split())
"""


def a_config(folder: Path, **changes: Any) -> Path:
    """A config file with its data beside it: two data sets, two stages and a grader that obeys completions.

    `gold_of` returns the golds. `changes` replace sections, except `limits`, `listen` and `journal`, which are merged.
    """
    folder.mkdir(exist_ok=True)
    _write_rows(folder / "sums.jsonl", [(f"What is {n} times {_FACTOR}?", f"#### {_FACTOR * n}") for n in range(2, 32)])
    _write_rows(folder / "words.jsonl", [(f"What is word {n}?", f"#### gold-word-{n}") for n in range(20)])
    (folder / "orders.py").write_text(_ORDERS)
    columns = {"columns": {"prompt": "question"}, "gold": {"column": "answer", "extract": {"after": "####"}}}
    config: dict[str, Any] = {
        "datasets": {
            "sums": {"path": "sums.jsonl", **columns, "graders": {"orders": 1}, "validation_fraction": 0.2},
            "words": {"path": "words.jsonl", **columns, "graders": {"string_exact": 3, "orders": 1}},
        },
        "graders": {"orders": {"type": "python", "path": "orders.py:score"}},
        "stages": [
            {"name": "early", "until_step": 4, "mix": {"sums": 3, "words": 1}},
            {"name": "late", "until_step": 6, "mix": {"words": 1}},
        ],
        "prompts_per_iteration": 8,
        "listen": {},
        "limits": {"workers": 2},
        "journal": {"batch_seconds": 0.05},
    }
    for name, change in changes.items():
        merged = name in ("listen", "limits", "journal")
        config[name] = {**config[name], **change} if merged else change
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config, allow_unicode=True))
    return path


def gold_of(sample: Sample) -> str:
    """The right answer to a prompt of `a_config`."""
    number = int(re.findall(r"\d+", sample.messages[-1].content)[0])
    return str(_FACTOR * number) if sample.dataset == "sums" else f"gold-word-{number}"


def _write_rows(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    path.write_text("".join(json.dumps({"question": question, "answer": answer}) + "\n" for question, answer in rows))


@dataclass
class Server:
    """A server process."""

    process: subprocess.Popen[bytes]
    log: Path
    ready_file: Path
    client: httpx.Client

    @property
    def url(self) -> str:
        """Where it listens."""
        return str(self.client.base_url).rstrip("/")

    @property
    def port(self) -> int:
        """The port of `url`."""
        return int(self.url.rpartition(":")[2])

    def sample(self, iteration: int, batch_size: int = 8, **more: Any) -> SampleResponse:
        """The answer to /sample, which must be 200."""
        body = {"iteration": iteration, "batch_size": batch_size, **more}
        return SampleResponse.model_validate(good(self.client.post("/sample", json=body)))

    def grade(
        self, items: Sequence[Mapping[str, Any]], request_id: str, iteration: int = 0, **more: Any
    ) -> GradeResponse:
        """The answer to /grade, which must be 200."""
        body = {"iteration": iteration, "request_id": request_id, "items": items, **more}
        return GradeResponse.model_validate(good(self.client.post("/grade", json=body)))

    def counter(self, name: str) -> float:
        """One metric of /metrics, summed over its labels."""
        lines = self.client.get("/metrics").raise_for_status().text.splitlines()
        found = [line for line in lines if re.fullmatch(rf"dataserver_{name}(\{{.*\}})? \S+", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)

    def family(self) -> list[psutil.Process]:
        """The server process and all its descendants."""
        server = psutil.Process(self.process.pid)
        return [server, *server.children(recursive=True)]

    def end(self, signal_number: int, seconds: float = 30.0) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(signal_number)
        return self.process.wait(seconds)


def good(response: httpx.Response) -> Any:
    """The JSON of a response whose status must be 200."""
    assert response.status_code == 200, response.text[:2000]
    return response.json()


@contextmanager
def serving(
    config: Path,
    *,
    port: int = 0,
    ready_file: Path | None = None,
    wait: bool = True,
    token: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server with this config, killed at the end.

    Args:
        port: 0 picks a free port.
        wait: wait until the server is ready, not only until it listens.
        token: the bearer token that its client sends.
    """
    name = f"server-{next(_numbers)}"
    ready_file, log = ready_file or config.with_name(f"{name}.json"), config.with_name(f"{name}.log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [BIN / "toolkit-rl-dataserver", config, "--port", str(port), "--ready-file", ready_file],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **(environment or {})},
        )
    try:
        url = _listening(process, log)
        headers = [(b"Authorization", f"Bearer {token}".encode())] if token else []
        with httpx.Client(base_url=url, timeout=60, trust_env=False, headers=headers) as client:
            if wait:
                until(ready_file.exists, process, log)
            yield Server(process, log, ready_file, client)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _listening(process: subprocess.Popen[bytes], log: Path) -> str:
    found: list[str] = []

    def is_told() -> bool:
        found[:] = re.findall(r"listens on (http://\S+)", log.read_text(errors="replace"))
        return bool(found)

    until(is_told, process, log)
    return found[0]


def until(is_so: Callable[[], bool], process: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> None:
    """Wait until `is_so()`; fail if the process ends or it takes too long."""
    deadline = time.monotonic() + _START_SECONDS
    while not is_so():
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise AssertionError(f"{'the server ended' if ended else 'too late'}: {log.read_text() if log else ''}")
        time.sleep(0.02)


def still_running(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """The processes that are still running after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False
