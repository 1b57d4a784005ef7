"""A config with a secret is refused without showing the secret, and a loaded config holds none."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from canaries import SECRETS, secrets_in
from pydantic import BaseModel

from dataserver.serving import a_config
from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.errors import ConfigError
from posttrain.rl.config import RLConfig
from rl.rl_runs import write_run

TOKEN = SECRETS["JUDGE_AUTH"]
MARK = TOKEN[:17]

JUDGE = {"type": "llm_judge", "url": "http://127.0.0.1:9/v1", "model": "judge"}


def refusal(path: Path, model: type[BaseModel], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, model, overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"journal": {"url": f"postgresql+psycopg://journal:{MARK}@h/d"}}, "the URL contains a password"),
        ({"journal": {"url": f"postgresql+psycopg://journal@h/d?password={MARK}"}}, "the URL contains a password"),
        ({"journal": {"url": f"postgresql+psycopg://journal@h/d?sslpassword={MARK}"}}, "a secret (sslpassword)"),
        ({"journal": {"url": f"postgresql+psycopg://j@h/d?oauth_client_secret={MARK}"}}, "(oauth_client_secret)"),
        ({"listen": {"token_env": TOKEN}}, "not the token itself"),
        ({"listen": {"token": TOKEN}}, "unknown key"),
        ({"graders": {"judge": {**JUDGE, "token_env": TOKEN}}}, "not the token itself"),
        ({"graders": {"judge": {**JUDGE, "token": TOKEN}}}, "unknown key"),
        ({"graders": {"judge": {**JUDGE, "url": f"http://u:{MARK}@h/v1"}}}, "a user name or password"),
        ({"graders": {"judge": {**JUDGE, "url": f"http://{MARK}@h/v1"}}}, "a user name or password"),
        ({"graders": {"judge": {**JUDGE, "url": f"http://h/v1?api_key={MARK}"}}}, "contains a secret (api_key)"),
        ({"graders": {"judge": {**JUDGE, "url": f"http://h/v1?a=1&access_token={MARK}"}}}, "(access_token)"),
        ({"graders": {"judge": {**JUDGE, "request": {"api_key": TOKEN}}}}, "api_key contains a secret"),
        (
            {"graders": {"judge": {**JUDGE, "request": {"a": [{"x-api-key": TOKEN}]}}}},
            "a.0.x-api-key contains a secret",
        ),
        ({"graders": {"http": {"type": "http", "url": f"http://h/?token={MARK}"}}}, "contains a secret (token)"),
    ],
)
def test_a_dataserver_config_with_a_secret_is_refused_and_does_not_show_it(
    tmp_path: Path, section: dict[str, Any], words: str
) -> None:
    message = refusal(a_config(tmp_path / "config", **section), DataserverConfig)

    assert words in message
    assert secrets_in(message.encode()) == []


def test_what_only_looks_like_a_secret_is_taken(tmp_path: Path) -> None:
    request = {"max_tokens": 5, "stop_token": "####", "chat_template_kwargs": {"key": "a long enough value"}}
    graders = {"judge": {**JUDGE, "url": "http://127.0.0.1:9/v1?session=1", "request": request}}

    config = load_config(a_config(tmp_path / "config", graders={**graders, **ORDERS}), DataserverConfig)

    assert config.graders["judge"].model_dump()["request"] == request


ORDERS = {"orders": {"type": "python", "path": "orders.py:score"}}


@pytest.mark.parametrize("key", ["hf_token", "dataserver.token", "run.wandb_api_key"])
def test_a_run_config_takes_no_secret_by_override(tmp_path: Path, key: str) -> None:
    message = refusal(write_run(tmp_path, tmp_path / "model"), RLConfig, f"{key}={TOKEN!r}")

    assert f"--set {key}=***" in message
    assert secrets_in(message.encode()) == []


@pytest.mark.parametrize("name", ["https://user:{}@hub/owner/name", "./http://user:{}@hub", "a b https://{}@hub"])
def test_a_model_is_named_without_the_password_in_its_address(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from posttrain.errors import ModelError
    from posttrain.models.location import locate_model

    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError) as caught:
        locate_model(name.format(MARK))

    assert "***@hub" in str(caught.value)
    assert secrets_in(str(caught.value).encode()) == []


def test_nothing_of_the_environment_gets_into_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    graders = {"judge": {**JUDGE, "token_env": "JUDGE_AUTH"}, **ORDERS}
    server = load_config(
        a_config(tmp_path / "config", graders=graders, listen={"token_env": "DATASERVER_TOKEN"}), DataserverConfig
    )
    run = load_config(
        write_run(tmp_path, tmp_path / "model", dataserver={"token_env": "DATASERVER_TOKEN"}), RLConfig, []
    )

    for config in (server, run):
        written = f"{config!r} {config} {config.model_dump()} {config.model_dump_json()} {yaml.safe_dump(str(config))}"
        assert "DATASERVER_TOKEN" in written
        assert secrets_in(written.encode()) == []
    assert server.graders["judge"].token() == SECRETS["JUDGE_AUTH"]
