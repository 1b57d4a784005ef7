"""The reporter of steps: what it sends arrives, and whatever happens to the rest, training is not disturbed."""

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dataserver.serving import Server, a_config, serving, until
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import journal_to_read
from posttrain.dataserver.journal.steps import StepSummaries
from posttrain.rl.client.client import DataserverClient
from posttrain.rl.client.reporter import ReportedGroup, StepReporter
from rl.rl_serving import SpoilingProxy, changed, failing, spoiling


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_config(tmp_path_factory.mktemp("reporter") / "config", limits={"workers": 1, "items": 3})


@pytest.fixture(scope="module")
def server(config: Path) -> Iterator[Server]:
    with serving(config) as server:
        yield server


def a_client(url: str, run_id: str = "run", **options: Any) -> DataserverClient:
    return DataserverClient(url, run_id=run_id, retry_seconds=30.0, **options)


def a_group(reward: float | None = 0.5, **changes: Any) -> ReportedGroup:
    group = ReportedGroup(0, 0, 0, "sums:1:abc", "sums", "", True, "fresh", reward, 1)
    return group._replace(**changes)


def reports(proxy: SpoilingProxy) -> list[dict[str, Any]]:
    return [json.loads(body) for path, _, body in proxy.requests if path == "/steps"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith("reporter")]


def test_reports_reach_the_journal(server: Server, config: Path, caplog: pytest.LogCaptureFixture) -> None:
    with a_client(server.url, "arrives") as client:
        reporter = StepReporter(client)
        reporter.report(0, {"loss": 0.5}, [a_group(1.0), a_group(0.0, slot=1, verdict="reward_spread", trained=False)])
        reporter.report(1, {"loss": 0.25, "async/age_max": 3})
        reporter.close(30)
    assert (reporter.dropped, warnings(caplog)) == (0, [])
    with journal_to_read(JournalConfig(path=config.with_name("journal.sqlite"))) as engine:
        summaries = StepSummaries(engine)
        (cell,) = summaries.rewards("arrives", 0)
        assert (cell.asked, cell.asked_reward, cell.trained, cell.trained_reward) == (2, 0.5, 1, 1.0)
        numbers = summaries.numbers("arrives", ["loss"], "async/", 0)
        assert [(cell.name, cell.iteration, cell.mean) for cell in numbers] == [
            ("async/age_max", 1, 3.0),
            ("loss", 0, 0.5),
            ("loss", 1, 0.25),
        ]


def test_what_is_too_much_or_not_finite_is_left_out(server: Server) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        reporter = StepReporter(client)
        numbers = {"nan": float("nan"), "inf": float("inf"), "n" * 81: 1.0, "": 1.0, "none": None}
        numbers |= {f"number {number}": 1 for number in range(300)}
        reporter.report(0, numbers, [a_group(float("nan"), verdict="v" * 500, slot=slot) for slot in range(5)])
        reporter.close(30)
    assert reporter.dropped == 0
    (sent,) = reports(proxy)
    assert list(sent["numbers"].items())[:4] == [("nan", None), ("inf", None), ("none", None), ("number 0", 1.0)]
    assert len(sent["numbers"]) == 200
    assert [(group["slot"], group["verdict"]) for group in sent["groups"]] == [(slot, "v" * 200) for slot in range(3)]


def test_only_the_first_report_that_arrives_forgets_later_steps(server: Server) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        client.meta()
        proxy.faults = [failing(503)]
        reporter = StepReporter(client)
        for step in range(3):
            reporter.report(step, {})
        reporter.close(30)
    assert [(sent["step"], sent.get("first", False)) for sent in reports(proxy)] == [(0, True), (1, True), (2, False)]
    assert reporter.dropped == 1


def test_a_server_that_knows_no_reports_is_asked_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        client.meta()
        proxy.always = failing(404)
        reporter = StepReporter(client)
        reporter.report(0, {})
        until(lambda: reporter.dropped == 1)
        for step in range(1, 20):
            reporter.report(step, {})
        reporter.close(30)
    assert reporter.dropped == 20
    assert len(reports(proxy)) == 1
    (line,) = warnings(caplog)
    assert "404" in line


def test_a_server_of_protocol_1_0_is_not_asked(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        proxy.describing = changed(lambda meta: meta.update(protocol_version="1.0"))
        reporter = StepReporter(client)
        reporter.report(0, {})
        reporter.close(30)
    assert reports(proxy) == []
    (line,) = warnings(caplog)
    assert "protocol is 1.0" in line


def test_a_server_that_is_away_costs_reports_and_one_warning(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        client.meta()
        proxy.always = failing(503)
        reporter = StepReporter(client)
        for step in range(4):
            reporter.report(step, {})
        until(lambda: reporter.dropped == 4)
        assert len(warnings(caplog)) == 1
        proxy.always = None
        reporter.report(4, {})
        until(lambda: len(reports(proxy)) == 5)
        reporter.close(30)
    assert reporter.dropped == 4
    assert [sent["step"] for sent in reports(proxy)] == [0, 1, 2, 3, 4]
    assert len(warnings(caplog)) == 1


def test_a_server_that_hangs_keeps_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = a_client(f"http://127.0.0.1:{listener.getsockname()[1]}", request_seconds=60.0)
        reporter = StepReporter(client, most_waiting=5)
        reporter.report(0, {})
        connection, _ = listener.accept()  # the first report is under way, and gets no answer
        for step in range(1, 11):
            reporter.report(step, {})
        assert reporter.dropped == 5
        reporter.close(0.0)
        assert reporter.dropped == 10
        reporter.report(11, {})
        assert reporter.dropped == 11
        client.close()
        until(lambda: not reporter._thread.is_alive())
        connection.close()
    assert len(warnings(caplog)) == 1
    assert reporter.dropped == 12


def test_a_report_that_makes_no_sense_does_not_stop_the_next_one(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        reporter = StepReporter(client)
        reporter.report(0, {}, [a_group(slot=-1)])
        reporter.report(1, {"loss": "high"})  # type: ignore[dict-item]
        reporter.report(2, {})
        reporter.close(30)
    assert [sent["step"] for sent in reports(proxy)] == [2]
    assert (reporter.dropped, len(warnings(caplog))) == (2, 1)
