"""A server that is killed, stopped or cannot start: nothing that was answered changes, and nothing is left behind."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from dataserver.serving import a_config, are_gone, gold_of, good, serving, until
from running import BIN
from toolkit.dataserver.schemas import Sample

Seen = list[tuple[Any, Any]]


def grade_request(iteration: int, samples: Sequence[Sample]) -> dict[str, Any]:
    """Completions as a model might write them: some right, some wrong, the same for the same iteration."""
    choice = random.Random(iteration)
    items = [
        {
            "item_id": f"{sample.slot}-{try_}",
            "sample_id": sample.sample_id,
            "completion": gold_of(sample) if choice.random() < 0.4 else f"sleep 0.02 wrong {choice.randrange(10)}",
            "slot": sample.slot,
        }
        for sample in samples
        for try_ in range(4)
    ]
    return {"iteration": iteration, "request_id": f"step {iteration}", "items": items}


def train(url: str) -> Seen:
    """What a trainer sees over all iterations; it asks again as long as nobody answers."""
    seen = []
    with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        for iteration in range(8):
            sampled = ask(client, "/sample", {"iteration": iteration, "batch_size": 8})
            samples = [Sample.model_validate(sample) for sample in sampled["samples"]]
            graded = ask(client, "/grade", grade_request(iteration, samples))
            seen.append((sampled, [(one["item_id"], one["status"], one["reward"]) for one in graded["results"]]))
    return seen


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            response = client.post(path, json=body)
        except httpx.TransportError:
            time.sleep(0.02)
            continue
        if response.status_code != 503:
            return good(response)
        time.sleep(0.02)
    raise AssertionError(f"nobody answers {path}")


def journal(folder: Path) -> list[tuple[Any, ...]]:
    """What is kept, in the order of the requests' ids."""
    with closing(sqlite3.connect(folder / "journal.sqlite")) as database:
        query = "SELECT request_id, item_id, sample_id, completion, status, reward FROM grades ORDER BY 1, 2"
        return database.execute(query).fetchall()


def kept(seen: Seen) -> list[tuple[Any, ...]]:
    """What the journal must hold of a run that was answered so."""
    rows = []
    for iteration, (sampled, results) in enumerate(seen):
        request = grade_request(iteration, [Sample.model_validate(sample) for sample in sampled["samples"]])
        for item, (item_id, status, reward) in zip(request["items"], results, strict=True):
            rows.append((request["request_id"], item_id, item["sample_id"], item["completion"], status, reward))
    return sorted(rows)


def calls(config: Path) -> int:
    """How many completions the grader has seen."""
    file = config.with_name("calls")
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What a trainer sees where all goes well."""
    config = a_config(tmp_path_factory.mktemp("undisturbed") / "config")
    with serving(config) as server:
        seen = train(server.url)
        assert server.end(signal.SIGTERM) == 0
        assert not server.ready_file.exists()
    assert journal(config.parent) == kept(seen)
    return seen


def test_a_trainer_does_not_notice_that_the_server_is_killed(tmp_path: Path, undisturbed: Seen) -> None:
    config = a_config(tmp_path / "config")
    with ThreadPoolExecutor() as threads:
        with serving(config) as server:
            port = server.port
            training = threads.submit(train, server.url)
            until(lambda: calls(config) >= 50)
            server.end(signal.SIGKILL)
        with serving(config, port=port) as server:
            until(lambda: calls(config) >= 130)
            assert not training.done()
            server.end(signal.SIGKILL)
        with serving(config, port=port) as server:
            seen = training.result(60)
            assert server.end(signal.SIGTERM) == 0

    assert seen == undisturbed
    rows = journal(config.parent)
    assert set(rows) <= set(kept(undisturbed))
    assert len(rows) == len({row[:2] for row in rows})


def test_a_killed_server_leaves_no_process_behind(tmp_path: Path) -> None:
    with serving(a_config(tmp_path / "config", limits={"workers": 3, "grader_seconds": 20})) as server:
        sample = server.sample(0, 1).samples[0]
        # One grader waits, one runs in C and lets no thread of Python on, and one worker has nothing to do.
        items = [
            {"item_id": order, "sample_id": sample.sample_id, "completion": order} for order in ("sleep 15", "stick")
        ]
        with ThreadPoolExecutor() as threads:
            grading = threads.submit(server.grade, items, "busy")
            until(lambda: calls(server.log) == 2)
            family = server.family()
            assert len(family) >= 5
            server.end(signal.SIGKILL)

            assert are_gone(family, 5) == []
            with pytest.raises(httpx.TransportError):
                grading.result()


def test_workers_that_are_killed_are_replaced(tmp_path: Path) -> None:
    with serving(a_config(tmp_path / "config")) as server:
        sample = server.sample(0, 1).samples[0]
        for round_ in range(3):
            server.grade(
                [{"item_id": "a", "sample_id": sample.sample_id, "completion": f"warm {round_}"}], f"w{round_}"
            )
            for worker in server.family()[3:]:
                worker.kill()
            items = [
                {"item_id": str(number), "sample_id": sample.sample_id, "completion": f"{round_} {number}"}
                for number in range(20)
            ]
            begin = time.monotonic()

            results = server.grade(items, f"after {round_}").results

            assert [result.status for result in results] == ["ok"] * 20
            assert time.monotonic() - begin < 5


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
            until(lambda: calls(config) == 2)
            family = server.family()

            assert server.end(signal.SIGTERM) == 0

            assert [result.status for result in grading.result().results] == ["ok"] * 4
        assert not server.ready_file.exists()
        assert are_gone(family, 5) == []
        with pytest.raises(httpx.ConnectError):
            server.client.get("/healthz")
        assert "Traceback" not in server.log.read_text()
    assert [row[1:] for row in journal(config.parent)] == [
        (item["item_id"], sample.sample_id, item["completion"], "ok", 0.0) for item in items
    ]


def test_work_that_nobody_waits_for_does_not_hold_up_the_end(tmp_path: Path) -> None:
    limits = {"workers": 2, "grader_seconds": 0.5, "grade_seconds": 0.6}
    with serving(a_config(tmp_path / "config", limits=limits)) as server:
        sample = server.sample(0, 1).samples[0]
        items = [
            {"item_id": str(number), "sample_id": sample.sample_id, "completion": f"sleep 0.4 {number}"}
            for number in range(80)
        ]
        assert "abstain" in {result.status for result in server.grade(items, "much").results}
        begin = time.monotonic()

        assert server.end(signal.SIGTERM) == 0

        # What is left would take 16 seconds.
        assert time.monotonic() - begin < 6


def test_ctrl_c_ends_a_server_like_any_command(tmp_path: Path) -> None:
    with serving(a_config(tmp_path / "config")) as server:
        family = server.family()

        assert server.end(signal.SIGINT) == 130

        assert server.log.read_text().splitlines()[-1] == "interrupted"
        assert not server.ready_file.exists()
        assert are_gone(family, 5) == []


def test_a_server_can_be_stopped_while_it_starts(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config")
    config.with_name("wait").touch()
    with serving(config, wait=False) as server:
        until(lambda: len(server.family()) > 3)
        family = server.family()

        assert server.end(signal.SIGTERM, seconds=10) == 0

        assert are_gone(family, 5) == []


def test_what_a_killed_server_left_is_not_taken_for_a_sign_of_life(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config")
    config.with_name("wait").touch()
    stale = tmp_path / "ready.json"
    stale.write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": 1, "config_id": "old"}))

    with serving(config, ready_file=stale, wait=False):
        assert not stale.exists()


def failed_start(config: Path, *arguments: str | Path, **environment: str) -> tuple[int, list[str]]:
    """The exit code of a server that cannot start, and what it says after the lines on how far it got."""
    ended = subprocess.run(
        [BIN / "toolkit-rl-dataserver", config, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    first = next((number for number, line in enumerate(lines) if line.startswith("error: ")), len(lines))
    return ended.returncode, lines[first:]


def test_a_port_that_is_taken_is_told_in_one_line(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config")
    config.with_name("wait").touch()
    with serving(config, wait=False) as server:
        other = failed_start(config, "--port", str(server.port))

    message = (
        f"error: cannot listen on 127.0.0.1 port {server.port}: Address already in use; is another server running?"
    )
    assert other == (2, [f"{message} --port 0 picks a free port"])


def breaks_the_journal(folder: Path) -> Path:
    (folder / "journal.sqlite").mkdir(parents=True)
    return a_config(folder)


def breaks_the_grader(folder: Path) -> Path:
    config = a_config(folder)
    (folder / "orders.py").write_text("import nothing_of_that_name\n")
    return config


def breaks_the_cache(folder: Path) -> Path:
    (folder / "cache").mkdir(parents=True)
    (folder / "cache" / "golds").write_text("a file where a folder should be")
    return a_config(folder)


@pytest.mark.parametrize(
    ("broken", "code", "message"),
    [
        (breaks_the_journal, 2, "journal.sqlite cannot be opened"),
        (breaks_the_grader, 2, "No module named 'nothing_of_that_name'"),
        (breaks_the_cache, 1, "FileExistsError"),
    ],
)
def test_a_server_that_can_never_be_ready_ends(
    tmp_path: Path, broken: Callable[[Path], Path], code: int, message: str
) -> None:
    ended, lines = failed_start(
        broken(tmp_path / "config"), "--port=0", POSTTRAIN_TOOLKIT_CACHE=str(tmp_path / "config/cache")
    )

    assert ended == code
    assert message in lines[0]
    assert len(lines) == 1


def test_a_ready_file_that_cannot_be_written_ends_the_server(tmp_path: Path) -> None:
    code, lines = failed_start(
        a_config(tmp_path / "config"), "--port=0", "--ready-file", tmp_path / "none" / "ready.json"
    )

    assert code == 2
    assert len(lines) == 1 and lines[0].startswith("error: --ready-file: ")
