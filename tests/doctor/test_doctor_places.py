"""Folders, locks, ports, models and tokens are tried, and no token is told."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.doctor import places
from posttrain.doctor.findings import Asked

SECRET = "hf_abcdefghijklmnop"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_TOKEN", "PGPASSWORD", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)


def test_folders_are_written_to_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub" / "deep"))
    assert places.folders(Asked()).state == "fine"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "hub").write_text("")
    found = places.folders(Asked())
    assert (found.state, found.mend, found.in_shell) == ("broken", "export HF_HOME=FOLDER", True)


def test_locks_are_tried_where_the_runs_go(asked: Callable[..., Asked], tmp_path: Path) -> None:
    there = asked(run={"output_dir": "new/runs"})
    before = sorted(tmp_path.iterdir())
    assert str(tmp_path) in places.locks(there).told
    assert places.locks(there).state == "fine"
    assert sorted(tmp_path.iterdir()) == before
    assert places.locks(asked(run={"output_dir": "/proc/runs"})).state == "broken"


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert places.is_taken(port)
        server = _dataserver(tmp_path, port)
        found = places.ports(server)
        assert found.state == "broken"
        assert str(port) in found.told
    assert places.ports(server).state == "fine"
    assert places.ports(Asked()).state == "fine"


def _dataserver(folder: Path, port: int) -> Asked:
    from posttrain.config.load import load_config
    from posttrain.dataserver.config.dataserver import DataserverConfig

    (folder / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    config = folder / "serve.yaml"
    config.write_text(
        "datasets: {rows: {path: rows.jsonl, graders: {string_exact: 1}}}\n"
        "stages: [{name: one, until_step: 2, mix: {rows: 1}}]\n"
        f"listen: {{port: {port}}}\n"
    )
    return Asked(config, "dataserver", load_config(config, DataserverConfig))


def test_a_model_that_is_not_there_is_broken(
    asked: Callable[..., Asked], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    assert places.model(asked()).state == "fine"
    assert places.model(asked(model={"name": "./nowhere"})).state == "broken"
    of_hub = asked(model={"name": "someone/some-model"})
    assert "will be fetched" in places.model(of_hub).told
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = places.model(of_hub)
    assert (found.state, found.mend) == ("broken", "unset HF_HUB_OFFLINE")
    # As huggingface_hub lays out what it fetched.
    fetched = tmp_path / "hub" / "hub" / "models--someone--some-model"
    (fetched / "snapshots" / "abc").mkdir(parents=True)
    (fetched / "snapshots" / "abc" / "config.json").write_text("{}")
    (fetched / "refs").mkdir()
    (fetched / "refs" / "main").write_text("abc")
    assert places.model(of_hub).state == "fine"


@pytest.mark.parametrize(
    ("value", "problem"), [(f"{SECRET}\n", "line breaks"), (f" {SECRET}", "blanks"), ("", "empty")]
)
def test_a_token_with_blanks_is_broken_and_is_not_told(
    value: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", value)
    found = places.tokens(Asked())
    assert found.state == "broken"
    assert problem in found.told
    assert SECRET not in f"{found}"


def test_tokens_are_told_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "none" in places.tokens(Asked()).told
    monkeypatch.setenv("HF_TOKEN", SECRET)
    found = places.tokens(Asked())
    assert (found.state, found.told) == ("fine", "set: HF_TOKEN")


def test_a_token_that_the_config_names_must_be_there(
    tmp_path: Path, asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = _dataserver(tmp_path, 0)
    protected = server.config.listen.model_copy(update={"token_env": "SERVER_TOKEN"})
    named = Asked(server.path, server.kind, server.config.model_copy(update={"listen": protected}))
    found = places.tokens(named)
    assert (found.state, found.mend) == ("broken", "export SERVER_TOKEN=TOKEN")
    assert "listen.token_env" in found.told
    monkeypatch.setenv("SERVER_TOKEN", SECRET)
    assert places.tokens(named).state == "fine"


def test_pushing_needs_the_token_of_the_hub(asked: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = asked(run={"push": {"repo": "someone/model"}})
    found = places.tokens(pushed)
    assert (found.state, found.mend) == ("broken", "export HF_TOKEN=TOKEN")
    assert "run.push" in found.told
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert places.tokens(pushed).state == "fine"


def test_a_tracker_needs_its_key(asked: Callable[..., Asked], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))
    tracked = asked(run={"trackers": ["wandb"]})
    assert places.tokens(tracked).mend == "wandb login"
    (tmp_path / ".netrc").write_text(f"machine api.wandb.ai login user password {SECRET}\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert places.tokens(tracked).state == "fine"
    (tmp_path / ".netrc").unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert places.tokens(tracked).state == "fine"
