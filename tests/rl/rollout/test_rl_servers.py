"""A run whose completions come from servers is the same run, whatever servers and trainer do meanwhile."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from posttrain.config.load import load_config
from posttrain.errors import ConfigError, RunError
from posttrain.rl.config import RLConfig
from posttrain.rl.train import config_identity
from rl.rl_runs import (
    folder_of,
    kill_after,
    require_same_runs,
    said,
    started,
    steps_done,
    train_here,
    training_rows,
    wait_for_step,
)
from rl.rollout.server_runs import Serve, serving, write
from running import metrics

_TESTS = Path(__file__).parents[2]
AHEAD = {"staleness": 1}
_PROGRAM = _TESTS / "inference" / "servers" / "serve_contract.py"


@pytest.fixture
def serve(tiny_model: Path) -> Iterator[Serve]:
    with serving(tiny_model) as serve:
        yield serve


def finished(folder: Path, model: Path, **rollout: int) -> Path:
    """A finished run with one server that never failed."""
    with serving(model) as serve:
        config = write(folder, model, {"urls": [serve().url]}, rollout=rollout)
        train_here(config)
    return config


@pytest.fixture(scope="module")
def alone(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("alone"), tiny_model)


@pytest.fixture(scope="module")
def ahead(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("ahead"), tiny_model, **AHEAD)


def manifest(config: Path) -> dict[str, Any]:
    return json.loads((folder_of(config) / "manifest.json").read_text())


def test_servers_sample_with_the_weights_of_the_formula(alone: Path, ahead: Path) -> None:
    rows, later = (training_rows(metrics(folder_of(config))) for config in (alone, ahead))
    assert [row.get("async/age_max", 0.0) for row in later] == [0.0] + [1.0] * 7
    # The learning rate is large, so another step's weights would differ far more.
    assert all(row["sampling/logprob_difference"] < 1e-5 for row in rows)
    assert all(row["sampling/logprob_difference"] > 1e-3 for row in later[1:])
    found = manifest(alone)
    assert found["engine"]["servers"] == ["vLLM 0.30.0"]
    assert found["engine"]["seeds_repeat"] and found["engine"]["weights"] == "folder"
    assert found["server_failures"] == 0


def test_a_server_that_dies_in_a_run_changes_nothing(
    ahead: Path, serve: Serve, tiny_model: Path, tmp_path: Path
) -> None:
    lasting, failing = serve(), serve()
    failing.faults["dies_after"] = 60
    urls = {"urls": [lasting.url, failing.url]}
    config = write(tmp_path, tiny_model, urls, rollout=AHEAD)
    train_here(config)
    assert "dies_after" in failing.faults and failing.faults["dies_after"] <= 0
    assert manifest(config)["server_failures"] == 1
    require_same_runs(ahead, config)


@pytest.mark.long
def test_a_killed_trainer_goes_on_with_other_servers_as_if_nothing_had_happened(
    ahead: Path, serve: Serve, tiny_model: Path, tmp_path: Path
) -> None:
    config = write(tmp_path, tiny_model, {"urls": [serve().url]}, rollout=AHEAD)
    kill_after(config, 5)
    other = write(tmp_path, tiny_model, {"urls": [serve().url], "request_seconds": 99}, rollout=AHEAD)
    assert other == config
    train_here(config, resume=True)
    require_same_runs(ahead, config)


@pytest.mark.long
def test_without_servers_for_too_long_a_run_saves_and_goes_on_when_there_is_one(
    alone: Path, serve: Serve, tiny_model: Path, tmp_path: Path
) -> None:
    server = serve()
    server.faults["dies_after"] = 110
    config = write(tmp_path, tiny_model, {"urls": [server.url], "retry_seconds": 0.5})
    with pytest.raises(RunError, match=r"saved; --resume continues.* 0 of 1 servers work, 1 are needed") as outage:
        train_here(config)
    assert outage.value.exit_code == 1
    assert 0 < steps_done(config) < 8
    write(tmp_path, tiny_model, {"urls": [serve().url]})
    train_here(config, resume=True)
    require_same_runs(alone, config)


def test_a_server_started_with_the_run_is_started_again_with_its_weights(
    ahead: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{_TESTS.parent / 'src'}:{_TESTS}")
    start = {"command": [sys.executable, str(_PROGRAM), "vllm-server", "--causal"], "start_seconds": 120}
    config = write(tmp_path, tiny_model, {"start": start}, rollout=AHEAD)
    with started(config) as process:
        wait_for_step(config, 3, process)
        (server,) = (
            each
            for each in psutil.Process(process.pid).children(recursive=True)
            if str(_PROGRAM) in each.cmdline() and "posttrain.base.guard" not in each.cmdline()
        )
        server.kill()
        code = process.wait(250)
    assert code == 0, said(config)
    assert "it is started again" in said(config)
    assert manifest(config)["server_failures"] == 1
    require_same_runs(ahead, config)
    assert not server.is_running()


@pytest.mark.parametrize(
    ("fault", "told", "steps"),
    [
        ("keeps_weights", "did not take over the weights after optimizer step 1", 1),
        ("keeps_cache", "samples with other weights than it scores with", 1),
        ("keeps_label", "servers work, 1 are needed", 0),
    ],
)
def test_a_server_with_other_weights_than_it_says_is_found_before_a_step_trains_on_them(
    fault: str, told: str, steps: int, serve: Serve, tiny_model: Path, tmp_path: Path
) -> None:
    server = serve()
    server.faults[fault] = True
    config = write(tmp_path, tiny_model, {"urls": [server.url], "retry_seconds": 0.5}, evaluation=None)
    with pytest.raises(RunError, match=told):
        train_here(config)
    assert steps_done(config) == steps  # the first weights are those that the server was started with


def test_a_server_whose_log_probabilities_ignore_the_temperature_is_refused_before_training(
    serve: Serve, tiny_model: Path, tmp_path: Path
) -> None:
    server = serve("sglang-server")
    server.faults["raw_logprobs"] = True
    config = write(tmp_path, tiny_model, {"urls": [server.url]}, engine="sglang-server")
    with pytest.raises(ConfigError, match="ignore the temperature"):
        train_here(config)
    assert steps_done(config) == 0


@pytest.mark.parametrize(("engine", "weights"), [("vllm-server", "adapter"), ("sglang-server", "auto")])
def test_servers_get_the_adapter_or_all_weights_of_each_step(
    engine: str, weights: str, serve: Serve, tiny_model: Path, tmp_path: Path
) -> None:
    server = serve(engine)
    servers = {"urls": [server.url], "weights": weights}
    config = write(tmp_path, tiny_model, servers, engine=engine, training={"max_steps": 3}, evaluation=None)
    train_here(config)
    rows = training_rows(metrics(folder_of(config)))
    assert all(row["sampling/logprob_difference"] < 1e-5 for row in rows)
    loads = [path for path, _ in server.asked if path.endswith(("load_lora_adapter", "update_weights_from_disk"))]
    unloads = [path for path in loads if "unload" in path]
    assert (len(loads) - len(unloads), len(unloads)) == ((3, 2) if weights == "adapter" else (3, 0))


def test_what_is_sent_is_part_of_a_run_and_where_the_servers_are_is_not(tiny_model: Path, tmp_path: Path) -> None:
    def identity(servers: dict[str, Any], engine: str = "vllm-server") -> dict[str, Any]:
        return config_identity(load_config(write(tmp_path, tiny_model, servers, engine=engine), RLConfig))

    plain = identity({"urls": ["http://127.0.0.1:1"]})
    assert plain == identity({"urls": ["http://127.0.0.1:2"], "request_seconds": 5, "token_env": "SERVER_KEY"})
    assert plain == identity({"start": {"command": ["vllm", "serve"]}})
    assert plain != identity({"urls": ["http://127.0.0.1:1"], "weights": "auto"})
    assert plain != identity({"urls": ["http://127.0.0.1:1"]}, "sglang-server")
    assert "127.0.0.1" not in json.dumps(plain)
