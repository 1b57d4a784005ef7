"""Services that fail, refuse or echo a secret: no part of it is shown, logged or kept."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from canaries import SECRETS, Watched, files_below, leaks, secrets_in, watched
from secret_services import ECHOES, echoing_line, echoing_services, strict_services

from dataserver.graders.services import free_port
from dataserver.serving import a_config
from posttrain.errors import ServerError
from posttrain.rl.client.client import DataserverClient
from rl.rl_runs import write_run
from running import BIN

TOKEN = SECRETS["DATASERVER_TOKEN"]


@pytest.fixture(scope="module")
def echoes() -> Iterator[str]:
    with echoing_services() as url:
        yield url


def graded(folder: Path, graders: dict[str, Any]) -> tuple[Watched, dict[str, Any]]:
    """Run `toolkit-rl-grade` on one completion; return the ended process and the line it wrote."""
    words = {
        "path": "words.jsonl",
        "columns": {"prompt": "question"},
        "gold": {"column": "answer", "extract": {"after": "####"}},
        "graders": dict.fromkeys(graders, 1),
    }
    stages = [{"name": "one", "until_step": 4, "mix": {"words": 1}}]
    remote = {name: {"retries": 0, **grader} for name, grader in graders.items()}
    config = a_config(folder / "config", datasets={"words": words}, graders=remote, stages=stages)
    (folder / "answers.jsonl").write_text(json.dumps({"dataset": "words", "line": 1, "completion": "gold"}) + "\n")
    ended = watched([BIN / "toolkit-rl-grade", config, "answers.jsonl", "graded.jsonl"], folder)
    assert ended.code == 0, ended.text
    return ended, json.loads((folder / "graded.jsonl").read_text())


def as_judge(url: str) -> dict[str, Any]:
    return {"type": "llm_judge", "url": url, "model": "judge", "token_env": "JUDGE_AUTH"}


def as_http(url: str) -> dict[str, Any]:
    return {"type": "http", "url": url, "token_env": "GRADER_TOKEN"}


def test_a_grading_service_that_sends_the_key_back_does_not_spread_it(tmp_path: Path, echoes: str) -> None:
    with echoing_line() as line:
        graders = {"judge_line": as_judge(line), "http_line": as_http(line)}
        for way in ECHOES:
            for status in (200, 400, 401, 500, 503):
                graders[f"judge_{way}_{status}"] = as_judge(f"{echoes}/{way}/{status}")
                graders[f"http_{way}_{status}"] = as_http(f"{echoes}/{way}/{status}")
        ended, graded_line = graded(tmp_path, graders)

    assert len(graded_line["components"]) == 2 + 2 * 5 * len(ECHOES)
    assert "***" in json.dumps(graded_line), "some of the details show that there was something"
    assert leaks({**ended.places, **files_below(tmp_path)}) == []


def test_a_judge_that_refuses_or_is_away_is_told_without_the_key(tmp_path: Path) -> None:
    with strict_services() as url:
        wrong = {"token_env": "HF_TOKEN"}
        graders = {
            "right": as_judge(f"{url}/judge"),
            "refused": {**as_judge(f"{url}/judge"), **wrong},
            "refused_http": {**as_http(f"{url}/grade"), **wrong},
            "away": as_judge(f"http://127.0.0.1:{free_port()}/judge"),
        }
        ended, line = graded(tmp_path, graders)

    told = json.dumps(line)
    assert f"{url}/judge answered 401" in told and f"{url}/grade answered 401" in told and "ConnectError" in told
    assert "I looked" in told, "the judge that was given its key has judged"
    assert leaks({**ended.places, **files_below(tmp_path)}) == []


@pytest.mark.parametrize("status", [200, 302, 400, 401, 403, 404, 409, 422, 429, 500, 503])
@pytest.mark.parametrize("way", ECHOES)
def test_a_trainer_does_not_repeat_its_token(
    echoes: str, way: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        DataserverClient(f"{echoes}/{way}/{status}", token=TOKEN, run_id="r", retry_seconds=0.0) as client,
        pytest.raises(ServerError) as caught,
    ):
        client.meta()

    shown = f"{caught.value!r} {caught.value.__cause__} {caught.value.__context__} {caplog.text}"
    assert secrets_in(shown.encode()) == []


def test_a_trainer_does_not_repeat_its_token_from_what_is_no_http() -> None:
    with (
        echoing_line() as url,
        DataserverClient(url, token=TOKEN, run_id="r", retry_seconds=0.0) as client,
        pytest.raises(ServerError) as caught,
    ):
        client.meta()

    assert "broke off its answer" in str(caught.value)
    assert secrets_in(f"{caught.value} {caught.value.__context__}".encode()) == []


LONG = [pytest.param(*each, marks=pytest.mark.long) for each in (("body/403", 1), ("deep/500", 0), ("body/401", 2))]


@pytest.mark.parametrize(("way", "code"), [("json/422", 1), *LONG])
def test_a_plan_with_a_server_that_sends_the_token_back_shows_nothing_of_it(
    tmp_path: Path, tiny_model: Path, echoes: str, way: str, code: int
) -> None:
    section = {"config": None, "url": f"{echoes}/{way}", "token_env": "DATASERVER_TOKEN"}
    config = write_run(tmp_path, tiny_model, dataserver=section)

    ended = watched([BIN / "toolkit-rl-train", config, "--dry-run", "--debug"], tmp_path)

    assert ended.code == code, ended.text
    assert echoes in ended.text
    assert leaks({**ended.places, **files_below(tmp_path)}) == []
