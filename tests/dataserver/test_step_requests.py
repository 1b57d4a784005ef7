"""Reports of optimizer steps over HTTP: what is stored, what is refused, and what becomes of a lost database."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dataserver.postgres import PostgresServer
from dataserver.serving import Server, a_config, good, serving
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import journal_to_read
from posttrain.dataserver.journal.steps import StepSummaries

GROUP = {"slot": 3, "sample_id": "sums:1:abc", "dataset": "sums", "trained": True, "origin": "carried", "age": 2}
TOKEN = "a token of enough characters"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_config(tmp_path_factory.mktemp("steps") / "config", limits={"workers": 1, "items": 5})


@pytest.fixture(scope="module")
def server(config: Path) -> Iterator[Server]:
    with serving(config) as server:
        yield server


def report(server: Server, **body: Any) -> httpx.Response:
    return server.client.post("/steps", json={"run_id": "run", "step": 0, **body})


def kept(config: Path, run_id: str) -> list[tuple[int, float | None, float | None]]:
    """Per step: the rewards that were asked and trained."""
    with journal_to_read(JournalConfig(path=config.with_name("journal.sqlite"))) as engine:
        cells = StepSummaries(engine).rewards(run_id, 0)
    return [(cell.iteration, cell.asked_reward, cell.trained_reward) for cell in cells]


def test_a_report_is_stored_once_and_a_later_one_replaces_it(server: Server, config: Path) -> None:
    rejected = {**GROUP, "mean_reward": 1, "verdict": "mean_reward", "trained": False}
    body = {"run_id": "once", "numbers": {"loss": None}, "groups": [rejected, {**GROUP, "mean_reward": 0.5}]}
    config_id = good(server.client.get("/meta"))["config_id"]
    for _ in range(2):
        assert good(report(server, **body, step=7, config_id=config_id)) == {"run_id": "once", "step": 7}
    assert kept(config, "once") == [(7, 0.75, 0.5)]
    good(report(server, **{**body, "groups": [{**GROUP, "mean_reward": 0.25}]}, step=7))
    assert kept(config, "once") == [(7, 0.25, 0.25)]
    for step in (8, 9):
        good(report(server, **body, step=step))
    good(report(server, run_id="once", step=8, first=True))
    assert [step for step, *_ in kept(config, "once")] == [7]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"numbers": {f"n{number}": 0.5 for number in range(200)}, "groups": [GROUP] * 5}, 200),
        ({"numbers": {f"n{number}": 0.5 for number in range(201)}}, 422),
        ({"numbers": {"n" * 80: 1}}, 200),
        ({"numbers": {"n" * 81: 1}}, 422),
        ({"numbers": {"": 1}}, 422),
        ({"numbers": {"n": "1"}}, 422),
        ({"groups": [GROUP] * 6}, 422),
        ({"groups": [{**GROUP, "verdict": "v" * 201}]}, 422),
        ({"groups": [{**GROUP, "origin": "elsewhere"}]}, 422),
        ({"groups": [{**GROUP, "slot": -1}]}, 422),
        ({"groups": [{**GROUP, "trained": 1}]}, 422),
        ({"groups": [{key: value for key, value in GROUP.items() if key != "trained"}]}, 422),
        ({"groups": [{**GROUP, "color": "red"}]}, 422),
        ({"step": -1}, 422),
        ({"step": True}, 422),
        ({"run_id": "r" * 201}, 422),
        ({"config_id": "another"}, 409),
    ],
)
def test_reports_are_bounded(server: Server, body: dict[str, Any], status: int) -> None:
    assert report(server, **{"run_id": "bounds", **body}).status_code == status


def test_numbers_that_are_none_are_refused(server: Server) -> None:
    text = b'{"run_id": "run", "step": 0, "numbers": {"loss": NaN}}'
    assert server.client.post("/steps", content=text, headers={"Content-Type": "application/json"}).status_code == 422


def test_a_token_and_the_size_limit_hold_for_reports_too(tmp_path: Path) -> None:
    config = a_config(
        tmp_path / "config", listen={"token_env": "STEPS_TOKEN"}, limits={"workers": 1, "body_mb": 4 / 1024}
    )
    with serving(config, token=TOKEN, environment={"STEPS_TOKEN": TOKEN}) as server:
        body = {"run_id": "run", "step": 0}
        assert httpx.post(f"{server.url}/steps", json=body, trust_env=False).status_code == 401
        assert good(report(server)) == body
        assert report(server, numbers={f"{number:080}": 0.5 for number in range(100)}).status_code == 413


def test_without_a_journal_reports_are_taken_and_shown(tmp_path: Path) -> None:
    with serving(a_config(tmp_path / "config", journal={"enabled": False}, limits={"workers": 1})) as server:
        good(report(server, step=4, groups=[{**GROUP, "mean_reward": 0.5}], numbers={"async/age_max": 2}))
        shown = good(server.client.get("/ui/data"))
    assert (shown["run"], shown["last_step"]) == ("run", 4)
    assert [cell["asked_reward"] for cell in shown["steps"]] == [0.5]
    assert [(cell["name"], cell["mean"]) for cell in shown["numbers"]] == [("async/age_max", 2.0)]


def test_a_database_that_is_away_is_told_and_used_again_when_it_is_back(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    config = a_config(tmp_path / "config", journal={"url": postgres.new_database()}, limits={"workers": 1})
    with serving(config) as server:
        good(report(server))
        postgres.stop()
        try:
            refused = report(server, step=1)
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert refused.headers["Retry-After"] == "2"
        finally:
            postgres.start()
        assert good(report(server, step=1))["step"] == 1
