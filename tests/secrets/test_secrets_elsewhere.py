"""Secrets that a config, a traceback, a log or a grading process might show."""

import json
from pathlib import Path
from typing import Any

import pytest
from canaries import SECRETS, files_below, leaks, secrets_in, watched
from pydantic import BaseModel
from secret_services import echoing_line, echoing_services

from dataserver.serving import a_config, serving
from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.errors import ConfigError
from posttrain.rl.config import RLConfig
from rl.rl_runs import write_run
from running import BIN

TOKEN = SECRETS["JUDGE_AUTH"]
MARK = TOKEN[:17]


def refusal(path: Path, model: type[BaseModel], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, model, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    "url", [f"http://user:{MARK}@host:9000", f"https://{MARK}@host", f"ftp://user:{MARK}@host", [f"http://u:{MARK}@h"]]
)
def test_the_address_of_a_dataserver_with_a_password_is_refused_and_not_shown(tmp_path: Path, url: Any) -> None:
    config = write_run(tmp_path, tmp_path / "model", dataserver={"config": None, "url": url})

    message = refusal(config, RLConfig)

    assert "dataserver.url" in message
    assert secrets_in(message.encode()) == []


@pytest.mark.parametrize(
    "override",
    [
        f"dataserver.url=http://user:{MARK}@host",
        f"dataserver.url=ftp://a-rather-long-name-of-a-user-that-fills-the-line:{MARK}@host",
        f"dataserver.urls=http://user:{MARK}@host",
        f"dataserver.url=[http://user:{MARK}@host]",
    ],
)
def test_an_override_with_a_password_is_not_shown(tmp_path: Path, override: str) -> None:
    config = write_run(tmp_path, tmp_path / "model", dataserver={"config": None, "url": "http://host"})

    message = refusal(config, RLConfig, override)

    assert "--set dataserver.url" in message
    assert secrets_in(message.encode()) == []


@pytest.mark.parametrize("url", [f"postgresql+psycopg://u:{MARK}@h/d", f"mysql://u:{MARK}@h/d"])
def test_an_override_of_the_journal_with_a_password_is_not_shown(tmp_path: Path, url: str) -> None:
    config = a_config(tmp_path / "config")
    for override in (f"journal.url={url}", f"journal.path=[{url}]", f"journal={url}"):
        message = refusal(config, DataserverConfig, override)
        assert secrets_in(message.encode()) == []


def test_params_of_a_grader_hold_no_secret(tmp_path: Path) -> None:
    grader = {"type": "python", "path": "orders.py:score", "params": {"judge": {"api_key": TOKEN}}}

    message = refusal(a_config(tmp_path / "config", graders={"orders": grader}), DataserverConfig)

    assert "judge.api_key contains a secret" in message
    assert secrets_in(message.encode()) == []


@pytest.mark.parametrize(
    "params", [{"headers": {"Authorization": f"Bearer {TOKEN}"}}, {"token": [TOKEN]}, {"judge": [{"x-api-key": TOKEN}]}]
)
def test_params_hold_no_secret_in_a_list_or_a_header_either(tmp_path: Path, params: dict[str, object]) -> None:
    grader = {"type": "python", "path": "orders.py:score", "params": params}
    message = refusal(a_config(tmp_path / "config", graders={"orders": grader}), DataserverConfig)
    assert "contains a secret" in message
    assert secrets_in(message.encode()) == []


def test_a_token_of_a_language_model_is_no_secret(tmp_path: Path) -> None:
    params = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "think_end_token": "</think>",
        "mask_token": "[MASK_ID]",
    }
    grader = {"type": "python", "path": "orders.py:score", "params": params}
    config = load_config(a_config(tmp_path / "config", graders={"orders": grader}), DataserverConfig)
    assert config.graders["orders"].model_dump()["params"] == params


@pytest.mark.parametrize(("way", "variable"), [("header/403", "DATASERVER_TOKEN"), ("header/422", "JUDGE_AUTH")])
def test_a_traceback_and_the_log_of_its_libraries_do_not_show_what_a_server_sends_back(
    tmp_path: Path, tiny_model: Path, way: str, variable: str
) -> None:
    with echoing_services() as url:
        section = {"config": None, "url": f"{url}/{way}", "token_env": variable}
        config = write_run(tmp_path, tiny_model, dataserver=section)
        ended = watched([BIN / "toolkit-rl-train", config, "--dry-run", "--debug"], tmp_path)

    assert ended.code in (1, 2), ended.text
    assert "Traceback" in ended.text
    assert "DEBUG httpcore" in ended.text and "***" in ended.text
    assert leaks({**ended.places, **files_below(tmp_path)}) == []


def test_the_log_of_a_library_does_not_show_the_key_that_a_service_sends_back(tmp_path: Path) -> None:
    with echoing_services() as url, echoing_line() as line:
        judge = {"type": "llm_judge", "model": "judge", "token_env": "JUDGE_AUTH", "retries": 0}
        graders = {"orders": {**judge, "url": f"{url}/header/400"}, "broken": {**judge, "url": line}}
        words = {"path": "words.jsonl", "columns": {"prompt": "question"}, "gold": None}
        config = a_config(
            tmp_path / "config",
            graders=graders,
            datasets={"words": {**words, "graders": {"orders": 1, "broken": 1}}},
            stages=[{"name": "one", "until_step": 4, "mix": {"words": 1}}],
        )
        (tmp_path / "in.jsonl").write_text(json.dumps({"dataset": "words", "line": 1, "completion": "gold"}) + "\n")
        ended = watched([BIN / "toolkit-rl-grade", config, "in.jsonl", "out.jsonl", "--debug"], tmp_path)

    assert ended.code == 0, ended.text
    assert "DEBUG httpcore" in ended.text and "***" in ended.text
    assert leaks({**ended.places, **files_below(tmp_path)}) == []


GRADER = """
import os

def score(item):
    raise ValueError(sorted(name for name, value in os.environ.items() if "can" + "ary-" in value))
"""


def test_a_grader_of_the_users_own_sees_the_environment_but_for_what_the_config_names(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config", listen={"token_env": "DATASERVER_TOKEN"})
    (tmp_path / "config" / "orders.py").write_text(GRADER)
    with serving(config, token=SECRETS["DATASERVER_TOKEN"], environment=SECRETS) as server:
        (sample,) = server.sample(0, 1).samples
        item = {"item_id": "a", "sample_id": sample.sample_id, "completion": "x"}
        (result,) = server.grade([item], "a").results

    told = json.loads(result.components["orders"].detail.partition(": ")[2].replace("'", '"'))
    assert told == sorted(set(SECRETS) - {"DATASERVER_TOKEN", "PGPASSWORD"})
