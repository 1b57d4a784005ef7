"""A server that is killed, stopped or cannot start: answers do not change, and nothing is left behind."""

import json
import os
import re
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from dataserver.serving import a_config, serving, still_running, until
from dataserver.trainer import journal, rows_of, train
from running import BIN


def calls(config: Path) -> int:
    """How many completions the grader has seen."""
    file = config.with_name("calls")
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_a_trainer_does_not_notice_that_the_server_is_killed(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config")
    with ThreadPoolExecutor() as threads:
        with serving(config) as server:
            port = server.port
            training = threads.submit(train, server.url)
            until(lambda: calls(config) >= 50)
            server.end(signal.SIGKILL)
        with serving(config, port=port) as server:
            until(lambda: calls(config) >= 110)
            assert not training.done()
            server.end(signal.SIGKILL)
        with serving(config, port=port) as server:
            disturbed = training.result(60)
            rows = journal(config.parent)
            undisturbed = train(server.url)
            assert server.end(signal.SIGTERM) == 0

    assert disturbed == undisturbed
    # Rows answered just before a kill may be missing; there are no extra rows and no duplicates.
    assert set(rows) <= set(rows_of(disturbed))
    assert len(rows) == len({row[:2] for row in rows})
    assert journal(config.parent) == rows_of(disturbed)


def test_a_killed_server_leaves_no_process_behind(tmp_path: Path) -> None:
    with serving(a_config(tmp_path / "config", limits={"workers": 3, "grader_seconds": 20})) as server:
        sample = server.sample(0, 1).samples[0]
        # One grader sleeps, one holds the GIL in C, and one worker is idle.
        items = [
            {"item_id": order, "sample_id": sample.sample_id, "completion": order} for order in ("sleep 15", "stick")
        ]
        with ThreadPoolExecutor() as threads:
            grading = threads.submit(server.grade, items, "busy")
            until(lambda: calls(server.log) == 2)
            family = server.family()
            assert len(family) >= 5
            server.end(signal.SIGKILL)

            assert still_running(family, 5) == []
            with pytest.raises(httpx.TransportError):
                grading.result()


def test_a_server_that_is_told_to_stop_answers_first(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config", journal={"batch_seconds": 30})
    with serving(config) as server:
        sample = server.sample(0, 1).samples[0]
        items = [
            {"item_id": str(number), "sample_id": sample.sample_id, "completion": f"sleep 0.4 {number}"}
            for number in range(4)
        ]
        with ThreadPoolExecutor() as threads:
            grading = threads.submit(server.grade, items, "last")
            until(lambda: calls(config) >= 2)
            family = server.family()

            assert server.end(signal.SIGTERM) == 0

            assert [result.status for result in grading.result().results] == ["ok"] * 4
        assert not server.ready_file.exists()
        assert still_running(family, 5) == []
        with pytest.raises(httpx.ConnectError):
            server.client.get("/healthz")
        assert "Traceback" not in server.log.read_text()
    assert [row[1:] for row in journal(config.parent)] == [
        (item["item_id"], sample.sample_id, item["completion"], "ok", 0.0) for item in items
    ]


def test_ctrl_c_ends_a_server_like_any_command_whatever_its_workers_do(tmp_path: Path) -> None:
    limits = {"workers": 2, "grader_seconds": 0.5, "grade_seconds": 0.6}
    with serving(a_config(tmp_path / "config", limits=limits)) as server:
        sample = server.sample(0, 1).samples[0]
        items = [
            {"item_id": str(number), "sample_id": sample.sample_id, "completion": f"sleep 0.4 {number}"}
            for number in range(80)
        ]
        assert "abstain" in {result.status for result in server.grade(items, "much").results}
        family = server.family()
        begin = time.monotonic()

        assert server.end(signal.SIGINT) == 130

        # The remaining grading, which nobody waits for, would take 16 seconds.
        assert time.monotonic() - begin < 8
        assert server.log.read_text().splitlines()[-1] == "interrupted"
        assert not server.ready_file.exists()
        assert still_running(family, 5) == []


def test_a_server_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config")
    config.with_name("wait").touch()
    # A ready file left by a killed server says nothing about this one.
    stale = tmp_path / "ready.json"
    stale.write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": 1, "config_id": "old"}))

    with serving(config, ready_file=stale, wait=False) as server:
        assert not stale.exists()
        until(lambda: len(server.family()) > 3)
        family = server.family()

        assert server.end(signal.SIGTERM, seconds=10) == 0

        assert still_running(family, 5) == []


Ending = tuple[int, list[str]]


def failed_start(config: Path, *options: str | Path) -> Ending:
    """The exit code of a server that cannot start, and its output after the progress lines."""
    ended = subprocess.run(
        [BIN / "toolkit-rl-dataserver", config, *options],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, "POSTTRAIN_TOOLKIT_CACHE": str(config.with_name("cache"))},
    )
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith("error: ")), len(lines))
    return ended.returncode, lines[first:]


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ending]:
    """How servers that cannot start end, by what is broken."""
    folder = tmp_path_factory.mktemp("broken")
    configs = {name: a_config(folder / name) for name in ("port", "journal", "grader", "cache", "ready file")}
    (folder / "journal" / "journal.sqlite").mkdir()
    (folder / "grader" / "orders.py").write_text("import nothing_of_that_name\n")
    (folder / "cache" / "cache").mkdir()
    (folder / "cache" / "cache" / "golds").write_text("a file where a folder should be")
    options: dict[str, tuple[str | Path, ...]] = dict.fromkeys(configs, ("--port=0",))
    options["ready file"] = ("--port=0", "--ready-file", folder / "none" / "ready.json")
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(3) as threads:
        options["port"] = (f"--port={listener.getsockname()[1]}",)
        runs = {name: threads.submit(failed_start, config, *options[name]) for name, config in configs.items()}
        return {name: run.result() for name, run in runs.items()}


@pytest.mark.parametrize(
    ("broken", "code", "message"),
    [
        ("port", 2, r"cannot listen on 127\.0\.0\.1 port \d+: Address already in use; .*--port 0 picks a free port"),
        ("journal", 2, r"journal: .*journal\.sqlite cannot be opened: "),
        ("grader", 2, r"graders\.orders: .*orders\.py cannot be imported: .*No module named 'nothing_of_that_name'"),
        ("cache", 1, r"FileExistsError: "),
        ("ready file", 2, r"--ready-file: .*ready\.json cannot be written: No such file or directory"),
    ],
)
def test_a_server_that_can_never_be_ready_ends_with_one_line(
    endings: dict[str, Ending], broken: str, code: int, message: str
) -> None:
    ended, lines = endings[broken]

    assert ended == code
    assert len(lines) == 1
    assert re.match(f"error: {message}", lines[0])
