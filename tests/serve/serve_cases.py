"""Servers as real processes: write a config, start a server, ask it, stop it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import yaml

_SECONDS = 120.0
_COMMAND = "from posttrain.cli.serve import main; main()"
_numbers = count()

NAME = "run:base"
"""The model of a server."""
LONG = 500_000
"""Tokens that take longer than any test."""


def write_config(path: Path, model: Path, **generation: Any) -> Path:
    """A config that answers greedily with 12 tokens, 8 answers at once."""
    sections = {
        "model": {"name": str(model), "backend": "hf", "dtype": "float32"},
        "generation": {"max_new_tokens": 12, "batch_size": 8, **generation},
    }
    path.write_text(yaml.safe_dump(sections))
    return path


@dataclass
class Server:
    """A server process."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path
    client: httpx.Client

    @property
    def port(self) -> int:
        """The port of `url`."""
        return int(self.url.rpartition(":")[2])

    def chat(self, content: str = "one two", **fields: Any) -> httpx.Response:
        """The answer to one question."""
        messages = [{"role": "user", "content": content}]
        return self.client.post("/v1/chat/completions", json={"model": NAME, "messages": messages, **fields})

    def complete(self, prompt: Any = "one two", **fields: Any) -> httpx.Response:
        """The answer to a prompt."""
        return self.client.post("/v1/completions", json={"model": NAME, "prompt": prompt, **fields})

    def stop(self) -> int:
        """Stop it, and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def good(response: httpx.Response) -> Any:
    """The JSON of a response whose status must be 200."""
    assert response.status_code == 200, response.text[:2000]
    return response.json()


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response with this status, in OpenAI's form."""
    assert response.status_code == status, response.text[:2000]
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return error


def events(text: str) -> list[Any]:
    """The bodies of the events of a stream, which must end as streams do."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n")]
    assert lines[-2:] == ["[DONE]", ""], text[-500:]
    return [json.loads(line) for line in lines[:-2]]


@contextmanager
def serving(
    config: Path, *options: str, environment: Mapping[str, str] | None = None, token: str = ""
) -> Iterator[Server]:
    """A server with this config on a free port, killed at the end."""
    log = config.with_name(f"server-{next(_numbers)}.log")
    command = [sys.executable, "-c", _COMMAND, config, "--port", "0", *options]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )
    try:
        found: list[str] = []
        until(
            lambda: bool(found.extend(re.findall(r"listens on (http://\S+)", log.read_text())) or found), process, log
        )
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with httpx.Client(base_url=found[0], timeout=60, trust_env=False, headers=headers) as client:
            yield Server(process, found[0], log, client)
    finally:
        process.kill()
        process.wait()


def until(is_so: Callable[[], bool], process: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> None:
    """Wait until `is_so()`; fail if the process ends or it takes too long."""
    deadline = time.monotonic() + _SECONDS
    while not is_so():
        ended = process is not None and process.poll() is not None
        if ended or time.monotonic() > deadline:
            raise AssertionError(f"{'the server ended' if ended else 'too late'}: {log.read_text() if log else ''}")
        time.sleep(0.02)
