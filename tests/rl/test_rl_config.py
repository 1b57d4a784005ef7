"""Configs that are rejected before training, and their error messages."""

from pathlib import Path
from typing import Any

import pytest

from posttrain.config.load import load_config
from posttrain.config.sections.engines import ENGINES, EngineTraits
from posttrain.dataserver.schemas import DatasetMeta
from posttrain.errors import ConfigError
from posttrain.rl.config import RLConfig
from posttrain.rl.schedule import RolloutSchedule, require_fit, stage_of
from rl.rl_recipes import a_meta
from rl.rl_runs import WriteRun, train_here

SERVERS = {"urls": ["http://127.0.0.1:8000"]}
BEHIND = {"engine": "vllm-server", "servers": SERVERS}
HELD_OUT = [DatasetMeta(name="a", rows=10, validation_rows=0, digest="")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rollout": {"temperature": 0}}, r"rollout: temperature: 0 makes all completions of a prompt the same"),
        ({"dataserver": {"url": "http://127.0.0.1:1"}}, r"dataserver: give either `config` .* or `url`"),
        ({"dataserver": {"config": None}}, r"dataserver: give either `config` .* or `url`"),
        ({"dataserver": {"config": None, "url": "127.0.0.1:9000"}}, r"dataserver\.url: "),
        (
            {"rollout": {"top_p": 0.9, "importance_correction": "token_mask"}},
            r"rollout: importance_correction: token_mask compares the model's own probabilities, which top_p would",
        ),
        (
            {"rollout": {"engine": "vllm", "repetition_penalty": 1.1, "min_p": 0.1}},
            r"rollout: importance_correction: sequence_mask compares .* which min_p, repetition_penalty would change",
        ),
        ({"rollout": {"engine": "vllm", "temperature": 2.5}}, r"rollout: temperature: 2\.5 is more than vLLM accepts"),
        (
            {"rollout": {"engine": "vllm"}, "evaluation": {"temperature": 3}},
            r"evaluation: temperature: 3 is more than vLLM accepts; at most 2",
        ),
        (
            {"rollout": {"engine": "vllm"}, "model": {"quantization": "4bit"}},
            r"rollout: engine: vllm would sample from the base in full precision; set model\.quantization: none",
        ),
        (
            {"rollout": {"engine": "vllm", "sync": "adapter"}, "lora": {"dora": True}},
            r"rollout: sync: adapter is not possible with lora\.dora",
        ),
        (
            {"algorithm": "dapo", "rollout": {"stop": ["\n"]}},
            r"rollout: stop: mask_truncated_completions \(of dapo, or in objective\) would also mask",
        ),
        (
            {"rollout": {"engine": "vllm"}, "training": {"ema": {}}},
            r"training: an average of the weights is exported, but .* set rollout\.engine: hf",
        ),
        ({"evaluation": None, "run": {"export": "best"}}, r"run: export: best needs an evaluation section"),
        (
            {"evaluation": {"temperature": 0.0}},
            r"evaluation: samples: 2 with temperature: 0 gives the same answer 2 times",
        ),
        (
            {"rollout": {"engine": "vllm-server"}},
            r"rollout: engine: vllm-server needs servers: either urls .* or start",
        ),
        ({"rollout": {"servers": SERVERS}}, r"rollout: servers: given, but engine: hf uses none"),
        ({"rollout": {**BEHIND, "sync": "weights"}}, r"rollout: sync: weights is not for engine: vllm-server"),
        (
            {"rollout": {**BEHIND, "placement": "process"}},
            r"rollout: placement: process is not for engine: vllm-server",
        ),
        ({"rollout": {**BEHIND, "threads": 2}}, r"rollout: threads: 2 is not for engine: vllm-server"),
        ({"rollout": {**BEHIND, "engine_seconds": 9}}, r"rollout: engine_seconds: 9.* servers\.request_seconds"),
        ({"rollout": {"staleness": 1, "engine_seconds": 86401}}, r"rollout\.engine_seconds: .*86400"),
        ({"rollout": {**BEHIND, "gpu_memory_utilization": 0.5}}, r"rollout: gpu_memory_utilization: 0\.5 is not for"),
        ({"rollout": {**BEHIND, "compile": True}}, r"rollout: compile: true needs engine: vllm, but this is vllm-serv"),
        ({"rollout": {**BEHIND, "sleep": True}}, r"rollout: sleep: true needs engine: vllm, but this is vllm-server"),
        ({"rollout": {**BEHIND, "temperature": 2.5}}, r"rollout: temperature: 2\.5 is more than vLLM accepts"),
        ({"rollout": {"engine": "vllm-server", "servers": {}}}, r"rollout\.servers: give either `urls` .* or `start`"),
        (
            {"rollout": {"engine": "vllm-server", "servers": {**SERVERS, "weights": "off"}}},
            r"rollout: servers\.weights: off, but completions must come from the model in training",
        ),
        (
            {"rollout": {"engine": "sglang-server", "servers": {**SERVERS, "weights": "adapter"}}},
            r"rollout: servers\.weights: adapter is not possible with SGLang",
        ),
        (
            {"rollout": {"engine": "vllm-server", "servers": {"urls": ["http://10.0.0.5:8000"]}}},
            r"rollout\.servers: http://10\.0\.0\.5:8000 is another machine: start its server with a key.* token_env",
        ),
        (
            {"rollout": {"engine": "vllm-server", "servers": {"urls": ["http://10.0.0.5:8000"], "token_env": "KEY"}}},
            r"rollout\.servers: http://10\.0\.0\.5:8000 is another machine, without TLS.* insecure_network: true",
        ),
        (
            {"rollout": BEHIND, "model": {"quantization": "4bit"}},
            r"rollout: engine: vllm-server would sample from the base in full precision",
        ),
        ({"rollout": {"engine": "vlm"}}, r"rollout\.engine: .*vllm"),
        ({"rollout": {"engine": {"path": "engine.py"}}}, r"rollout\.engine\.path: .*must end with a colon"),
        (
            {"rollout": {"engine": {"path": "a.py:B"}, "sync": "adapter"}},
            r"rollout: sync: adapter is not possible with",
        ),
        ({"training": {"rows_per_step": 6}}, r"training: rows_per_step 6 is not a multiple of micro_batch_size 4"),
        ({"rollout": {"generations": 1}}, r"rollout\.generations: "),
        ({"rollout": {"generatoins": 4}}, r"rollout\.generatoins: .*generations"),
        ({"algorithm": "ppo"}, r"algorithm: .*grpo.*found .?ppo"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused_by_its_line(
    a_run: WriteRun, changes: dict[str, Any], told: str
) -> None:
    config = a_run(**changes)
    with pytest.raises(ConfigError, match=rf"rl\.yaml(:\d+)?: {told}") as refusal:
        load_config(config, RLConfig)
    assert len(str(refusal.value).splitlines()) == 1


def test_a_correction_that_is_off_leaves_the_sampling_free(a_run: WriteRun) -> None:
    for rollout in ({"top_p": 0.9}, {"engine": "vllm", "top_p": 0.9, "importance_correction": "none"}):
        assert load_config(a_run(rollout=rollout), RLConfig).rollout.correction.kind == "none"


def test_an_engine_that_takes_merged_weights_only_gets_no_adapter(
    a_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES, "hf", EngineTraits("another", has_weights=True))
    for sync in ("auto", "weights"):
        load_config(a_run(rollout={"sync": sync}), RLConfig)
    with pytest.raises(ConfigError, match="sync: adapter is not possible with another; use weights or auto"):
        load_config(a_run(rollout={"sync": "adapter"}), RLConfig)
    with pytest.raises(ConfigError, match="sleep: true needs engine: vllm, but this is hf"):
        load_config(a_run(rollout={"sleep": True}), RLConfig)


@pytest.mark.parametrize(("engine", "correction"), [("hf", "none"), ("vllm", "sequence_mask")])
def test_samples_of_vllm_are_corrected_unless_told_otherwise(a_run: WriteRun, engine: str, correction: str) -> None:
    assert load_config(a_run(rollout={"engine": engine}), RLConfig).rollout.correction.kind == correction


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rollout": {"generations": 3}}, r"rows_per_step: 8 is not a multiple of rollout\.generations 3.* 6 or 9"),
        ({"rollout": {"generations": 16}}, r"is not a multiple of rollout\.generations 16.* choose 16,"),
        ({"run": {"save_every": 3}, "rollout": {"iterations": 2}}, r"run\.save_every: 3 falls in the middle"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_before_anything_is_started(
    a_run: WriteRun, changes: dict[str, Any], told: str
) -> None:
    config = a_run(**changes)
    with pytest.raises(ConfigError, match=told):
        train_here(config)
    assert not (config.parent / "runs").exists()


def test_a_step_that_does_not_divide_over_the_processes_is_refused(
    a_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    config = load_config(a_run(), RLConfig)
    with pytest.raises(ConfigError, match=r"8 is not a multiple of training\.micro_batch_size 4 × 3 processes.* of 12"):
        RolloutSchedule.of(config)


@pytest.mark.parametrize(
    ("changes", "meta", "told"),
    [
        (
            {},
            {"prompts_per_iteration": 4},
            r"prompts_per_iteration: 4 .* In the dataserver's config set prompts_per_iteration: 2 and iteration_st",
        ),
        (
            {"rollout": {"iterations": 2}},
            {"iteration_stride": 1},
            r"iteration_stride: 1 do not fit .* set prompts_per_iteration: 2 and iteration_stride: 2",
        ),
        (
            # Counted in micro-batches, two per step, this would be one generation per step.
            {"rollout": {"steps_per_generation": 2}},
            {"prompts_per_iteration": 2, "iteration_stride": 1},
            r"steps_per_generation: 2 counts optimizer steps, .* 2 micro-batches.* set it to 1",
        ),
        (
            {"training": {"max_steps": 9}},
            {},
            r"training\.max_steps: 9 is beyond the dataserver's last stage, which ends at 8; .*beyond_last_stage",
        ),
        ({"training": {"warmup_steps": 8}}, {}, r"training: warmup_steps 8 leaves no step of the 8 to train"),
        ({}, {"datasets": HELD_OUT}, r"evaluation: the dataserver holds out no rows; set validation_fraction"),
        ({"evaluation": {"prompts": 11}}, {}, r"evaluation\.prompts: 11 is more than the 10 rows that"),
    ],
)
def test_a_config_that_does_not_fit_its_dataserver_is_refused(
    a_run: WriteRun, changes: dict[str, Any], meta: dict[str, Any], told: str
) -> None:
    config = load_config(a_run(**changes), RLConfig)
    schedule = RolloutSchedule.of(config)
    with pytest.raises(ConfigError, match=told):
        require_fit(config, schedule, a_meta(schedule, **meta))


def test_training_may_go_beyond_the_last_stage_where_the_config_says_so(a_run: WriteRun) -> None:
    changes: dict[str, Any] = {"training": {"max_steps": 9}, "dataserver": {"beyond_last_stage": True}}
    config = load_config(a_run(**changes), RLConfig)
    meta = a_meta(RolloutSchedule.of(config))

    assert require_fit(config, RolloutSchedule.of(config), meta) == 9
    assert (stage_of(meta, 7).name, stage_of(meta, 8).name) == ("one", "one")


def test_a_run_ends_with_the_dataservers_last_stage_unless_told_otherwise(a_run: WriteRun) -> None:
    config = load_config(a_run(), RLConfig)
    assert require_fit(config, RolloutSchedule.of(config), a_meta(RolloutSchedule.of(config))) == 8


def test_without_an_evaluation_the_dataserver_need_not_hold_rows_out(a_run: WriteRun) -> None:
    config = load_config(a_run(evaluation=None), RLConfig)
    assert require_fit(config, RolloutSchedule.of(config), a_meta(RolloutSchedule.of(config), datasets=HELD_OUT)) == 8


def test_a_token_that_is_not_there_is_refused_before_a_model_is_loaded(
    a_run: WriteRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    config = a_run(dataserver={"config": None, "url": "http://127.0.0.1:1", "token_env": "NO_SUCH_TOKEN"})
    with pytest.raises(ConfigError, match=r"dataserver\.token_env: the environment variable NO_SUCH_TOKEN is not set"):
        train_here(config)


def test_a_dataserver_whose_config_is_wrong_says_so_itself(a_run: WriteRun) -> None:
    config = a_run(data={"stages": [{"name": "one", "until_step": 4, "mix": {"c": 1}}]})
    with pytest.raises(ConfigError, match=r"the dataserver of .*data\.yaml: "):
        train_here(config)
    assert not Path(config.parent / "runs" / "rl").exists()
