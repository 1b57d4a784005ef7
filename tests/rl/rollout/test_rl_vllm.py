"""vLLM as a run's engine: it samples with the weights of the step, and a killed run can be resumed."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig

from posttrain.errors import ConfigError, ModelError
from posttrain.models.backend import LoadedModel
from posttrain.rl.rollout.engines.vllm import chosen_eager, chosen_sync
from rl.rl_runs import folder_of, kill_after, lines, run, train_here, training_rows, write_run
from running import metrics
from shared_weights import shared_weights
from vllm_model import write_vllm_model


@pytest.fixture(scope="session")
def vllm_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The model without favourite tokens: the other ends every turn at once and has nothing to learn.
    return write_vllm_model(tiny_model, tmp_path_factory.mktemp("rl_vllm")).with_name("plain")


def vllm_run(folder: Path, model: Path, /, **changes: Any) -> Path:
    """Write a float32 run with vLLM and greedy evaluations that are longer than the rollouts."""
    rollout = {"engine": "vllm", "max_prompt_tokens": 64, **changes.pop("rollout", {})}
    evaluation = {"temperature": 0, "samples": 1, "max_new_tokens": 12}
    name = {"dtype": "float32", **changes.pop("model", {})}
    return write_run(folder, model, model=name, rollout=rollout, evaluation=evaluation, **changes)


def answers(config: Path, step: int) -> list[tuple[str, str]]:
    """Sample id and completion of each answer of an evaluation."""
    file = folder_of(config) / "evaluations" / f"step-{step:06d}.jsonl"
    return [(line["sample_id"], line["completion"]) for line in lines(file)]


@pytest.mark.parametrize("sync", ["weights", "adapter"])
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.long)])
def test_vllm_answers_with_the_weights_of_the_step(tmp_path: Path, vllm_model: Path, sync: str, compiled: bool) -> None:
    rollout = {"sync": sync, "compile": compiled}
    config = vllm_run(tmp_path / "vllm", vllm_model, rollout=rollout, training={"max_steps": 4})
    train_here(config)
    transformers = vllm_run(
        tmp_path / "hf",
        vllm_model,
        model={"adapter": str(folder_of(config))},
        lora=None,
        rollout={"engine": "hf"},
        training={"max_steps": 2},
    )
    train_here(transformers)

    assert answers(config, 4) == answers(transformers, 0)
    assert answers(config, 4) != answers(config, 0)
    rows = training_rows(metrics(folder_of(config)))
    assert all(row["grad_norm"] > 0 and row["completion_tokens"] > 1 for row in rows)
    assert [row["sampling/ratio_beyond_limit"] for row in rows] == [0.0] * 4
    # The learning rate is large, so another step's weights would differ far more.
    assert all(row["sampling/logprob_difference"] < 1e-4 for row in rows)


SPREAD = [{"kind": "reward_spread"}]
AHEAD: list[dict[str, Any]] = [
    {"staleness": 1, "segment_tokens": 3},
    {"staleness": 1, "filters": SPREAD, "rejected": "substitute", "attempts": 2, "over_sampling": 1.5},
    {"staleness": 1, "filters": SPREAD, "rejected": "drop", "replay": {"share": 0.5, "fill": "reserved"}},
]


@pytest.mark.long
@pytest.mark.parametrize("rollout", [{}, *AHEAD])
def test_a_run_that_was_killed_goes_on_with_the_prompts_that_it_would_have_had(
    tmp_path: Path, vllm_model: Path, rollout: dict[str, Any]
) -> None:
    whole, killed = (vllm_run(tmp_path / name, vllm_model, rollout=rollout) for name in ("whole", "killed"))
    run(whole)
    kill_after(killed, 5)
    run(killed, "--resume")
    plain = vllm_run(tmp_path / "plain", vllm_model, rollout={"engine": "hf"})
    train_here(plain)

    rows = [training_rows(metrics(folder_of(config))) for config in (whole, killed, plain)]
    hashes = [[row["order_hash"] for row in each] for each in rows]
    assert hashes[0] == hashes[1] == hashes[2]
    assert len(hashes[0]) == 8
    for config in (whole, killed):
        assert not shared_weights(folder_of(config)).exists()


def test_vllm_works_ahead_in_a_process_of_its_own(tmp_path: Path, vllm_model: Path) -> None:
    changes = {"rollout": {"staleness": 1}, "training": {"max_steps": 3, "learning_rate": 1e-6}}
    config = vllm_run(tmp_path, vllm_model, **changes)
    run(config)
    rows = training_rows(metrics(folder_of(config)))
    assert [row.get("async/age_max", 0.0) for row in rows] == [0.0, 1.0, 1.0]
    # By weights that hardly differ; the probe has compared the engine's own with the model's at each load.
    assert all(row["sampling/logprob_difference"] < 1e-3 for row in rows)


@pytest.mark.long
@pytest.mark.ranks
def test_two_processes_have_a_vllm_each_and_ask_the_prompts_that_one_would(tmp_path: Path, vllm_model: Path) -> None:
    one, two = (vllm_run(tmp_path / name, vllm_model, training={"max_steps": 2}) for name in ("one", "two"))
    run(one)
    run(two, processes=2)
    rows = [training_rows(metrics(folder_of(config))) for config in (one, two)]
    assert [row["order_hash"] for row in rows[0]] == [row["order_hash"] for row in rows[1]]
    assert all(row["sampling/logprob_difference"] < 1e-4 for row in rows[1])
    assert answers(one, 0) == answers(two, 0)


def test_a_model_that_cannot_hold_prompt_and_completion_is_refused(tmp_path: Path, vllm_model: Path) -> None:
    config = vllm_run(tmp_path, vllm_model, rollout={"max_prompt_tokens": 4096})
    with pytest.raises(ModelError, match=r"vLLM cannot load .*max_model_len"):
        train_here(config)
    assert not (folder_of(config) / "manifest.json").exists()


@pytest.mark.parametrize(
    ("wanted", "device", "trains_compiled", "eager"),
    [
        ("auto", "cpu", False, None),
        ("auto", "cpu", True, False),
        ("auto", "cuda", True, None),
        (True, "cpu", False, False),
        (True, "cuda", False, False),
        (False, "cpu", True, None),
        (False, "cuda", False, True),
    ],
)
def test_what_is_compiled_is_as_the_config_says_or_as_the_layers_that_train(
    wanted: bool | str, device: str, trains_compiled: bool, eager: bool | None
) -> None:
    config: Any = SimpleNamespace(rollout=SimpleNamespace(compile=wanted))
    assert chosen_eager(config, replace(loaded(device), compiled=trains_compiled)) is eager


def loaded(device: str, **lora: Any) -> LoadedModel:
    adapters = {"peft_config": {"default": LoraConfig(r=4, **lora)}} if lora is not None else {}
    model: Any = SimpleNamespace(**adapters)
    return LoadedModel(model, None, torch.device(device), torch.float32, ())  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("wanted", "device", "lora", "chosen"),
    [
        ("auto", "cpu", {}, "weights"),
        ("auto", "cuda", {}, "adapter"),
        ("auto", "cuda", {"use_dora": True}, "weights"),
        ("auto", "cuda", {"modules_to_save": ["lm_head"]}, "weights"),
        ("weights", "cuda", {}, "weights"),
        ("adapter", "cpu", {}, "adapter"),
    ],
)
def test_the_adapter_alone_goes_over_where_vllm_is_fast_at_it_and_can_use_it(
    wanted: str, device: str, lora: dict[str, Any], chosen: str
) -> None:
    config: Any = SimpleNamespace(rollout=SimpleNamespace(sync=wanted))
    assert chosen_sync(config, loaded(device, **lora)) == chosen


def test_an_adapter_that_vllm_cannot_use_is_refused_by_what_it_has(tmp_path: Path) -> None:
    config: Any = SimpleNamespace(rollout=SimpleNamespace(sync="adapter"))
    with pytest.raises(ConfigError, match=r"sync: adapter is not possible with vLLM \(trainable_token_indices\)"):
        chosen_sync(config, loaded("cpu", trainable_token_indices=[1]))
    bare: Any = LoadedModel(torch.nn.Linear(2, 2), None, torch.device("cuda"), torch.float32, ())  # pyright: ignore
    with pytest.raises(ConfigError, match="there is no adapter: all weights are trained"):
        chosen_sync(config, bare)
