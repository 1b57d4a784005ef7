"""The sandbox for programs from completions is reported everywhere and never depends on what is installed."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from dataserver.serving import a_config, good, serving
from posttrain.rl.client.client import DataserverClient
from posttrain.rl.client.connection import handshake
from running import BIN

WARNING = "graders.code: warning: model-written programs run with resource limits only (sandbox: rlimits)"


def a_code_config(folder: Path, **grader: str) -> Path:
    config = a_config(
        folder,
        datasets={"code": {"path": "code.jsonl", "gold": None, "graders": {"code": 1}}},
        graders={"code": {"type": "code_stdio", **grader}},
        stages=[{"name": "one", "until_step": 4, "mix": {"code": 1}}],
        allow_code_execution=True,
    )
    row = {"prompt": "Write a program", "tests": [{"input": "1", "output": "2"}]}
    (folder / "code.jsonl").write_text(json.dumps(row) + "\n")
    return config


def commands(config: Path) -> list[list[str | Path]]:
    completions = config.with_name("completions.jsonl")
    completions.write_text('{"dataset": "code", "line": 1, "completion": "x"}\n')
    return [
        [BIN / "toolkit-rl-dataserver", config, "--dry-run"],
        [BIN / "toolkit-rl-dataserver", config, "--port", "0"],
        [BIN / "toolkit-rl-grade", config, completions, "--dry-run"],
        [BIN / "toolkit-rl-grade", config, completions],
    ]


def test_without_bubblewrap_nothing_runs_unless_limits_alone_are_asked_for(tmp_path: Path) -> None:
    for command in commands(a_code_config(tmp_path / "config")):
        nowhere = {**os.environ, "PATH": "/nowhere"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=nowhere)

        assert ended.returncode == 2
        assert "install the package bubblewrap" in ended.stderr
        assert "sandbox: rlimits" in ended.stderr


def test_limits_alone_are_warned_of_at_the_start_and_told_to_whoever_asks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = a_code_config(tmp_path / "config", sandbox="rlimits")
    _, _, dry_run, grade = commands(config)
    for command in ([BIN / "toolkit-rl-dataserver", config, "--dry-run"], dry_run, grade):
        wide = {**os.environ, "COLUMNS": "500"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=wide)
        assert WARNING in ended.stderr, ended.stderr
    with serving(config, environment={"COLUMNS": "500"}) as server:
        assert WARNING in server.log.read_text()
        assert good(server.client.get("/meta"))["sandboxes"] == {"code": "rlimits"}
        assert 'dataserver_sandbox{grader="code",sandbox="rlimits"} 1.0' in server.client.get("/metrics").text
        with DataserverClient(server.url, run_id="a run") as client:
            handshake(client)
    assert "the dataserver's graders code run programs from completions with resource limits only" in caplog.text
