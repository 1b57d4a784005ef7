"""Servers that a run starts: they end with it, and nobody else can use them or read their key."""

import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from inference.servers.server_engines import HOT, KINDS, expected, needs, requests
from posttrain.config.sections.servers import ServersConfig, StartConfig
from posttrain.errors import ConfigError, ServerError
from posttrain.inference.servers.open import open_server_engine
from posttrain.inference.servers.start import StartedServers
from posttrain.inference.servers.wire import ServerOutageError

_TESTS = Path(__file__).parents[2]
_PROGRAM = Path(__file__).with_name("serve_contract.py")

both = pytest.mark.parametrize("kind", KINDS)

# A run that starts servers, says so and waits to be killed.
_RUN = """
import sys
from pathlib import Path
from posttrain.config.sections.servers import StartConfig
from posttrain.inference.servers.start import StartedServers
from posttrain.inference.servers.wire import Needs

config = StartConfig.model_validate({"command": [sys.executable, sys.argv[1], "vllm-server"]})
needs = Needs(sys.argv[2], dtype="float32", max_length=512, end_ids=frozenset([2]))
StartedServers("vllm-server", config, needs, Path(sys.argv[3]))
print("started", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _path_of_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(_TESTS.parent / "src")
    monkeypatch.setenv("PYTHONPATH", f"{source}:{_TESTS}")


def section(kind: str, *options: str, **start: Any) -> ServersConfig:
    command = [sys.executable, str(_PROGRAM), kind, *options]
    return ServersConfig.model_validate({"start": {"command": command, "start_seconds": 30, **start}})


def pids_in(log: Path, starts: int = 1) -> list[int]:
    """The server's process ids, one for each time that it was started: at least `starts`."""
    deadline = time.monotonic() + 20
    while len(found := re.findall(r"pid (\d+)", log.read_text() if log.exists() else "")) < starts:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return [int(pid) for pid in found]


def pid_in(log: Path) -> int:
    (pid,) = pids_in(log)
    return pid


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    with suppress(psutil.NoSuchProcess):  # ended since the look before
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@both
def test_started_servers_answer_and_end_with_the_engine(kind: Any, model: Path, tmp_path: Path) -> None:
    folder, asked = tmp_path / "servers", requests(4, 2)
    engine = open_server_engine(kind, section(kind, "--sleep", "0.3", count=2), needs(model), folder)
    try:
        found = engine.complete(asked, HOT)
        assert {key: made.token_ids for key, made in found.items()} == {
            key: made.token_ids for key, made in expected(model, asked, HOT).items()
        }
    finally:
        engine.close()
    for number in range(2):
        until_gone(pid_in(folder / f"server{number}.log"))
    assert sorted(file.name for file in folder.iterdir()) == ["server0.log", "server1.log"]


@both
def test_the_key_is_random_and_in_no_log_argument_or_readable_file(kind: Any, model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "servers"
    start = section(kind).start
    assert start is not None
    servers = StartedServers(kind, start, needs(model), folder)
    try:
        pid = pid_in(folder / "server0.log")
        assert "key ***" in (folder / "server0.log").read_text()
        arguments = [word for each in [psutil.Process(pid), *psutil.Process(pid).parents()] for word in each.cmdline()]
        assert not any(servers.key in word for word in arguments)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert all(file.stat().st_mode & 0o777 == 0o600 for file in folder.iterdir())
        deadline = time.monotonic() + 20
        status = 0
        while status == 0 and time.monotonic() < deadline:
            try:
                path = "/v1/models" if kind == "vllm-server" else "/model_info"
                status = httpx.get(servers.urls[0] + path, trust_env=False).status_code
            except httpx.ConnectError:
                time.sleep(0.05)
        assert status == 401
    finally:
        servers.close()


def test_a_server_that_cannot_start_is_told_by_its_own_words(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"exit code 1[\s\S]*there is no such model"):
        open_server_engine("vllm-server", section("vllm-server", "--fail"), needs(model), tmp_path / "servers")


def kill(pid: int) -> None:
    psutil.Process(pid).kill()
    until_gone(pid)


@both
def test_a_server_that_dies_is_started_again_and_has_the_same_weights(
    kind: Any, model: Path, weights: Path, tmp_path: Path
) -> None:
    folder, asked = tmp_path / "servers", requests(4, 2)
    engine = open_server_engine(kind, section(kind), needs(model), folder)
    try:
        engine.load(weights, 1)
        for deaths in range(1, 5):  # more often than in a row
            kill(pids_in(folder / "server0.log", deaths)[-1])
            found = engine.complete(asked, HOT)
            assert {key: made.token_ids for key, made in found.items()} == {
                key: made.token_ids for key, made in expected(weights, asked, HOT).items()
            }
            assert engine.failures == deaths
    finally:
        engine.close()
    assert len(pids_in(folder / "server0.log")) == 5


def test_a_server_that_dies_again_and_again_is_an_outage(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "servers"
    once = section("vllm-server", "--once", str(tmp_path / "served"))
    engine = open_server_engine("vllm-server", once, needs(model), folder)
    try:
        engine.load(model, 1)
        kill(pids_in(folder / "server0.log")[-1])
        with pytest.raises(ServerOutageError, match=r"exit code 1[\s\S]*there is no such model"):
            engine.complete(requests(2, 2), HOT)
    finally:
        engine.close()
    assert len(pids_in(folder / "server0.log")) == 1 + 3


def test_a_program_that_does_not_exist_is_told(model: Path, tmp_path: Path) -> None:
    config = ServersConfig.model_validate({"start": {"command": ["/nonexistent/vllm", "serve"]}})
    with pytest.raises(ConfigError, match="no program /nonexistent/vllm"):
        open_server_engine("vllm-server", config, needs(model), tmp_path / "servers")


def test_servers_end_when_the_run_is_killed(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "servers"
    command = [sys.executable, "-c", _RUN, str(_PROGRAM), str(model), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "started\n"
        pid = pid_in(folder / "server0.log")
        run.send_signal(signal.SIGKILL)
    until_gone(pid)


def test_each_server_gets_its_devices(model: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import os, sys; print('devices', os.environ['CUDA_VISIBLE_DEVICES'])"]
    config = StartConfig.model_validate({"command": program, "count": 2, "devices": ["1", "2,3"]})
    servers = StartedServers("vllm-server", config, needs(model), tmp_path)
    try:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            logs = [(tmp_path / f"server{number}.log").read_text() for number in range(2)]
            if all(logs):
                break
            time.sleep(0.05)
        assert logs == ["devices 1\n", "devices 2,3\n"]
    finally:
        servers.close()
