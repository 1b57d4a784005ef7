"""Whole runs with secrets in the environment: their output, files and command lines hold none."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import yaml
from canaries import SECRETS, Watched, Watcher, files_below, leaks, watched
from secret_services import strict_services

from dataserver.serving import Server, serving
from rl.rl_runs import write_run
from running import BIN
from sft.small_sft import write_sft_run

TOKEN = SECRETS["DATASERVER_TOKEN"]


def clean(folder: Path, *ended: Watched) -> list[str]:
    """The secrets found in a folder's files and in the processes' output and command lines."""
    said = {f"{number} {place}": text for number, each in enumerate(ended) for place, text in each.places.items()}
    return leaks({**said, **files_below(folder)})


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tuple[Path, Watched]:
    """The folder and the process of a short SFT run with a tracker."""
    folder = tmp_path_factory.mktemp("sft")
    config = write_sft_run(folder, tiny_model, run={"save_every": 1, "trackers": ["tensorboard"]})
    ended = watched([BIN / "toolkit-sft", config, "--set", "training.max_steps=2", "--debug"], folder)
    assert ended.code == 0, ended.text
    return folder, ended


def test_fine_tuning_leaves_no_secret(sft: tuple[Path, Watched]) -> None:
    folder, ended = sft
    run = folder / "runs" / "sft"
    kept = {path.name for path in run.rglob("*")}

    assert {"config.yaml", "manifest.json", "metrics.jsonl", "result.json", "optimizer.pt", "toolkit_state.json"} < kept
    assert {"adapter_model.safetensors", "README.md", "tensorboard"} < kept
    assert clean(folder, ended) == []


@pytest.mark.long
def test_what_is_made_of_a_run_holds_no_secret(sft: tuple[Path, Watched]) -> None:
    folder, _ = sft
    (folder / "in.jsonl").write_text('{"prompt": "Say 1"}\n')
    commands = [
        ["toolkit-merge", "sft.yaml"],
        ["toolkit-predict", "sft.yaml", "in.jsonl", "out.jsonl", "--set", "generation.max_new_tokens=4"],
        ["toolkit-runs", "verify", "runs/sft"],
        ["toolkit-sft", "sft.yaml", "--dry-run", "--debug", "--run-name", "other"],
        ["toolkit-sft", "sft.yaml", "--resume", "--debug"],
    ]
    ended = [watched([BIN / command[0], *command[1:]], folder) for command in commands]

    assert [each.code for each in ended] == [0] * 5, [each.text for each in ended]
    assert (folder / "runs" / "sft" / "merged" / "config.json").is_file()
    assert clean(folder, *ended) == []


@pytest.fixture(scope="module")
def services() -> Iterator[str]:
    with strict_services() as url:
        yield url


@pytest.fixture(scope="module")
def rl_config(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, services: str) -> Path:
    """A run of two steps whose server and graders each require a token."""
    graders = {
        "judge": {"type": "llm_judge", "url": f"{services}/judge", "model": "judge", "token_env": "JUDGE_AUTH"},
        "http": {"type": "http", "url": f"{services}/grade", "token_env": "GRADER_TOKEN"},
        "says_a": {"type": "regex", "pattern": "(?s).*a.*"},
    }
    dataset = {"gold": None, "graders": dict.fromkeys(graders, 1)}
    data = {
        "graders": graders,
        "datasets": {name: {"path": f"{name}.jsonl", **dataset} for name in ("a", "b")},
        "listen": {"token_env": "DATASERVER_TOKEN", "log": "json"},
    }
    section = {"config": None, "url": "http://127.0.0.1:1", "token_env": "DATASERVER_TOKEN"}
    return write_run(
        tmp_path_factory.mktemp("rl"),
        tiny_model,
        data=data,
        dataserver=section,
        evaluation=None,
        training={"max_steps": 2},
    )


@pytest.fixture(scope="module")
def server(rl_config: Path) -> Iterator[Server]:
    with serving(rl_config.with_name("data.yaml"), token=TOKEN, environment=SECRETS) as server:
        yield server


def pages(server: Server) -> dict[str, bytes]:
    """The server's pages and headers, with and without the token."""
    found: dict[str, bytes] = {}
    for path in ("/meta", "/metrics", "/openapi.json", "/ui", "/ui/data", "/ui/completions", "/ui/completions/1"):
        known, unknown = server.client.get(path), httpx.get(server.url + path, trust_env=False)
        assert (known.status_code, unknown.status_code) == (200, 401)
        found[path] = known.content + unknown.content + str([known.headers, unknown.headers]).encode()
    return found


@pytest.mark.long
def test_reinforcement_learning_with_tokens_on_both_sides_leaves_no_secret(rl_config: Path, server: Server) -> None:
    watcher = Watcher(psutil.Process(server.process.pid))
    command = [BIN / "toolkit-rl-train", rl_config, "--set", f"dataserver.url={server.url}"]

    planned = watched([*command, "--dry-run", "--debug"], rl_config.parent)
    trained = watched([*command, "--debug"], rl_config.parent)
    commands = watcher.end()

    assert (planned.code, trained.code) == (0, 0), trained.text
    run = rl_config.parent / "runs" / "rl"
    lines = (run / "completions.jsonl").read_text().splitlines()
    assert len(lines) == 8 and '"status": "ok"' in lines[0], "the services took their keys"
    assert (rl_config.parent / "journal.sqlite").is_file()
    assert leaks({"server's commands": commands, **pages(server)}) == []
    assert clean(rl_config.parent, planned, trained) == []


@pytest.mark.long
def test_a_server_that_the_trainer_starts_writes_no_secret_either(rl_config: Path, tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes((rl_config.parent / name).read_bytes())
    (tmp_path / "data.yaml").write_text(rl_config.with_name("data.yaml").read_text())
    sections = yaml.safe_load(rl_config.read_text())
    sections["dataserver"] = {"config": "data.yaml"}
    (tmp_path / "rl.yaml").write_text(yaml.safe_dump(sections))

    ended = watched([BIN / "toolkit-rl-train", "rl.yaml", "--set", "training.max_steps=1", "--debug"], tmp_path)

    assert ended.code == 0, ended.text
    assert b"local_server_process" in ended.commands, "the command lines of the server are among them"
    assert (tmp_path / "runs" / "rl.dataserver.log").is_file()
    assert clean(tmp_path, ended) == []


def test_a_server_with_secrets_shows_none(rl_config: Path, server: Server) -> None:
    samples = server.sample(0, 2).samples
    items = [{"item_id": str(each.slot), "sample_id": each.sample_id, "completion": "an a"} for each in samples]
    assert {result.status for result in server.grade(items, "canary").results} == {"ok"}
    commands = str([process.cmdline() for process in server.family()]).encode()

    assert leaks({"commands": commands, **pages(server), **files_below(rl_config.parent)}) == []
