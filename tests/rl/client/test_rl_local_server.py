"""A dataserver started by the trainer: it is restarted if it dies, and never outlives the trainer."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dataserver.serving import a_config, still_running, until
from dataserver.trainer import journal
from posttrain.errors import ConfigError, ServerError
from posttrain.rl.client.client import DataserverClient
from posttrain.rl.client.local_server import LocalServer
from posttrain.rl.client.transport import OutageError
from rl.rl_serving import items_for

# A trainer that starts its dataserver and waits to be killed.
_TRAINER = """
import sys
from pathlib import Path
from posttrain.rl.client.local_server import LocalServer

with LocalServer(Path(sys.argv[1]), Path(sys.argv[2])) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def a_trainer(config: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that starts a dataserver, prints its URL, and ends when its stdin closes."""
    command = [sys.executable, "-c", _TRAINER, str(config), str(config.with_name("dataserver.log"))]
    trainer = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield trainer
    finally:
        trainer.kill()
        trainer.communicate()


def children(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def without_waiting(said: list[str]) -> list[str]:
    """The messages without startup progress, which a fast machine does not print."""
    return [line for line in said if not line.startswith("waiting for the dataserver, ")]


def test_a_server_serves_while_its_block_lasts_and_leaves_nothing(tmp_path: Path) -> None:
    # The config asks for all interfaces, port 1 and a token that is not set; the trainer overrides all three.
    config = a_config(tmp_path / "config", listen={"host": "0.0.0.0", "token_env": "NO_SUCH_TOKEN", "port": 1})
    log = tmp_path / "dataserver.log"
    log.write_text("from an earlier run\n")
    said: list[str] = []
    with LocalServer(config, log, ["prompts_per_iteration=3"], say=said.append) as server:
        with DataserverClient(server.url, run_id="a run") as client:
            assert client.connect(10).prompts_per_iteration == 3
            client.grade(0, "train-0", items_for(client.sample(0, 0, 3), "gold"))
        server.require_running()
        family = [psutil.Process(server.pid), *children(server.pid)]
        assert server.url.startswith("http://127.0.0.1:")
        assert len(family) > 2

    assert still_running(family, 5) == []
    assert len(journal(config.parent)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "dataserver.log"]
    lines = log.read_text().splitlines()
    assert lines[0] == "from an earlier run"
    assert any(line.startswith(f"toolkit-rl-dataserver listens on {server.url} ") for line in lines)
    assert without_waiting(said) == []


def test_a_server_that_is_killed_is_started_again_and_no_reward_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = a_config(tmp_path / "config")
    calls = config.with_name("calls")
    calls.touch()
    said: list[str] = []
    with (
        LocalServer(config, tmp_path / "dataserver.log", say=said.append) as server,
        DataserverClient(server.url, run_id="a run", check=server.require_running) as client,
        ThreadPoolExecutor() as threads,
    ):
        url = server.url
        items = items_for(client.sample(0, 0, 8), "gold", *[f"sleep 0.1 {number}" for number in range(5)])
        grading = threads.submit(client.grade, 0, "train-0", items)
        until(lambda: len(calls.read_text().splitlines()) >= 12)
        assert not grading.done()
        os.kill(server.pid, signal.SIGKILL)
        results = grading.result(60)
        assert server.url == url
        server.require_running()

    assert [(result.item_id, result.status) for result in results] == [(item.item_id, "ok") for item in items]
    assert [result.reward for result in results] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0] * 8
    assert without_waiting(said) == ["the dataserver was terminated by a signal (Killed); restart 1 of at most 5"]
    told = [record.getMessage() for record in caplog.records if record.name.startswith("posttrain.rl")]
    assert len(told) == 2
    assert told[0].endswith("retrying for up to 300 s")
    assert told[1].startswith(f"the dataserver at {url} answers again, after ")


def test_a_server_that_dies_too_often_ends_the_waiting(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config")
    said: list[str] = []
    with (
        LocalServer(config, tmp_path / "dataserver.log", restarts=1, say=said.append) as server,
        DataserverClient(server.url, run_id="a run", check=server.require_running) as client,
    ):
        client.meta()
        a_config(tmp_path / "config", prompts_per_iteration=0)
        os.kill(server.pid, signal.SIGKILL)

        with pytest.raises(ServerError, match=r"the dataserver of .*config\.yaml: .*prompts_per_iteration") as told:
            client.sample(0, 0, 1)

        assert not isinstance(told.value, OutageError)
        assert without_waiting(said)[1:] == [str(told.value)]


@pytest.mark.parametrize(
    ("changes", "override", "message"),
    [
        ({"stages": []}, "seed=1", r"the dataserver of .*config\.yaml: .*stages"),
        ({}, "limits.workers=none", r"--set limits\.workers"),
    ],
)
def test_a_wrong_config_is_told_in_the_servers_own_words(
    tmp_path: Path, changes: dict[str, object], override: str, message: str
) -> None:
    config = a_config(tmp_path / "config", **changes)

    with (
        pytest.raises(ConfigError, match=message) as told,
        LocalServer(config, tmp_path / "dataserver.log", [override]),
    ):
        raise AssertionError("it was not to start")

    assert "Traceback" not in str(told.value)
    assert "error: " not in str(told.value)


def test_a_server_that_fails_for_another_reason_shows_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = a_config(tmp_path / "config")
    log = tmp_path / "dataserver.log"
    config.with_name("wait").touch()  # the server starts but never becomes ready
    monkeypatch.setattr("posttrain.rl.client.local_server._SECONDS_BETWEEN_LINES", 0.05)
    said: list[str] = []

    def kill() -> None:
        until(lambda: any("listens on" in line for line in said))
        os.kill(server.pid, signal.SIGKILL)

    server = LocalServer(config, log, say=said.append)
    killing = threading.Thread(target=kill)
    killing.start()
    with pytest.raises(ServerError) as told, server:
        raise AssertionError("it was not to start")
    killing.join()

    first, *last = str(told.value).splitlines()
    assert first == f"the dataserver of {config} was terminated by a signal (Killed); the end of {log}:"
    # Processes that outlive the server may still write to the log.
    logged = [line.strip() for line in log.read_text().splitlines()]
    assert [line.strip() for line in last] == logged[: len(last)]
    assert last
    assert said[-1].startswith("waiting for the dataserver, ")
    assert said[-1].endswith(tuple(logged))


@pytest.mark.parametrize(("in_between", "batch_seconds"), [("", 30), ("stick", 0.05)], ids=["idle", "busy"])
def test_a_trainer_that_is_killed_takes_its_server_along(tmp_path: Path, in_between: str, batch_seconds: float) -> None:
    limits, journal_ = {"workers": 2, "grader_seconds": 25}, {"batch_seconds": batch_seconds}
    config = a_config(tmp_path / "config", limits=limits, journal=journal_)
    with a_trainer(config) as trainer, ThreadPoolExecutor() as threads:
        assert trainer.stdout is not None
        url = trainer.stdout.readline().strip()
        with DataserverClient(url, run_id="a run", retry_seconds=0) as client:
            items = items_for(client.sample(0, 0, 1), "gold", in_between)
            client.grade(0, "kept", items[:1])
            # `stick` makes a grader sleep in C while it holds the GIL.
            grading = threads.submit(client.grade, 0, "lost", items[1:] if in_between else [])
            until(lambda: in_between in config.with_name("calls").read_text())
            family = children(trainer.pid)
            assert len(family) >= 4

            trainer.kill()

            assert still_running(family, 20) == []
            assert isinstance(grading.exception(), OutageError if in_between else type(None))
    # Acknowledged rewards are kept: the server is asked to stop and has written its journal before it is killed.
    assert [row[0].split("/")[1] for row in journal(config.parent)] == ["kept"]


def test_ctrl_c_while_the_server_starts_leaves_nothing(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config")
    config.with_name("wait").touch()
    with a_trainer(config) as trainer:
        log = config.with_name("dataserver.log")
        until(lambda: log.exists() and "listens on" in log.read_text())
        until(lambda: len(children(trainer.pid)) > 2)
        family = children(trainer.pid)

        trainer.send_signal(signal.SIGINT)

        assert "KeyboardInterrupt" in trainer.communicate(timeout=30)[1]
        assert still_running(family, 5) == []


def test_a_server_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    with LocalServer(a_config(tmp_path / "config"), tmp_path / "dataserver.log", grace_seconds=0.3) as server:
        family = [psutil.Process(server.pid), *children(server.pid)]
        family[0].suspend()

    assert still_running(family, 5) == []
