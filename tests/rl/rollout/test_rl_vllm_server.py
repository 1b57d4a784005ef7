"""A run trains on the completions of a real vLLM server, which it starts, and starts again if that dies."""

import json
from pathlib import Path

import psutil
import pytest

from inference.servers.real_servers import ENVIRONMENT, real_command
from rl.rl_runs import folder_of, said, started, train_here, training_rows, wait_for_step
from rl.rollout.server_runs import write
from running import metrics
from shared_weights import shared_weights
from vllm_model import write_vllm_model


@pytest.mark.parametrize("weights", ["folder", "adapter"])
def test_a_real_server_samples_with_the_weights_of_the_step_though_it_dies(
    weights: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    model = write_vllm_model(tiny_model, tmp_path / "model").with_name("plain")
    start = {"command": real_command("vllm-server"), "start_seconds": 400}
    servers = {"start": start, "weights": weights, "request_seconds": 120}
    config = write(tmp_path / "run", model, servers, evaluation=None)
    with started(config) as process:
        wait_for_step(config, 3, process)
        guards = [each for each in psutil.Process(process.pid).children() if "posttrain.base.guard" in each.cmdline()]
        (server,) = (guard for guard in guards if "vllm.entrypoints.openai.api_server" in guard.cmdline())
        for each in server.children(recursive=True):
            each.kill()
        code = process.wait(400)
    assert code == 0, said(config)
    assert "it is started again" in said(config)
    rows = training_rows(metrics(folder_of(config)))
    assert len(rows) == 8
    # The learning rate is large, so another step's weights would differ far more.
    assert all(row["sampling/logprob_difference"] < 1e-4 for row in rows)
    manifest = json.loads((folder_of(config) / "manifest.json").read_text())
    assert manifest["engine"]["servers"][0].startswith("vLLM 0.")
    assert (manifest["engine"]["weights"], manifest["server_failures"]) == (weights, 1)


def test_a_real_server_generates_ahead(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    model = write_vllm_model(tiny_model, tmp_path / "model").with_name("plain")
    start = {"command": real_command("vllm-server"), "start_seconds": 400}
    config = write(tmp_path / "run", model, {"start": start, "request_seconds": 120}, rollout={"staleness": 1})
    train_here(config)
    rows = training_rows(metrics(folder_of(config)))
    assert [row.get("async/age_max", 0.0) for row in rows] == [0.0] + [1.0] * 7
    assert not shared_weights(folder_of(config)).exists()
