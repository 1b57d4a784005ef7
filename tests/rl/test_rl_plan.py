"""`toolkit-rl-train --dry-run`: shows and checks what would be trained, and changes nothing."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from base_install import base_python
from cli.refusals import contents
from dataserver.serving import Server, serving
from posttrain.cli.rl_train import main
from posttrain.config.sections.engines import ENGINES, EngineTraits
from rl.rl_runs import WriteRun, write_run
from sharp_model import write_adapter

WIDE = {"COLUMNS": "160"}
TOKEN = "a-long-and-random-token"


def shown(config: Path, *arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(config), "--dry-run", *arguments], env=WIDE)
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    return result.stderr


def words(plan: str) -> list[list[str]]:
    return [line.split() for line in plan.splitlines()]


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    """The URL of a port that is bound but not listening, so no other process can take it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def unserved(a_run: WriteRun, nowhere: str) -> Path:
    """The config of a run whose dataserver does not answer."""
    return a_run(dataserver={"config": None, "url": nowhere})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """The dataserver of a tiny run, which requires a token."""
    config = write_run(tmp_path_factory.mktemp("served"), tiny_model, data={"listen": {"token_env": "RL_TOKEN"}})
    with serving(config.with_name("data.yaml"), token=TOKEN, environment={"RL_TOKEN": TOKEN}) as server:
        yield server


def test_the_plan_tells_objective_schedule_curriculum_and_prompts(a_run: WriteRun):
    config = a_run()
    before = contents(config.parent)
    plan = shown(config)
    assert contents(config.parent) == before
    rows = words(plan)
    assert "algorithm       dr_grpo, arXiv:2503.20783\n" in plan
    assert ["aggregation", "constant"] in rows
    assert "8 completions, the groups of 2 prompts: 4 at once × 1 process × 2 micro-batches\n" in plan
    assert "8 completions, 4 for each of 2 prompts, serve 1 optimizer step\n" in plan
    assert "dataserver      needs prompts_per_iteration: 2 and iteration_stride: 1\n" in plan
    assert ["3", "3", "3", "2"] in rows
    assert "(folder), LoRA r=4 on all-linear\n" in plan
    assert "temperature 1, at most 8 new tokens after at most 1024; importance correction none\n" in plan
    assert "steps           8, learning rate 0.01 constant after 0 warm-up steps\n" in plan
    # A quarter of the 20 rows of each data set is held out.
    assert "rows            a 15, b 15 (config_id " in plan
    assert "6 of 10 held-out prompts, 2 completions each, every 2 steps and at the start\n" in plan
    # The weights are 4/7, 2/7 and 1/7.
    formula = ["0.571", "says_a", "+", "0.143", "says_digit", "+", "0.286", "says_e"]
    assert ["one", "1–4", "a", "100.0%", *formula] in rows
    assert ["two", "5–8", "a", "50.0%", *formula] in rows
    assert ["b", "50.0%", *formula] in rows
    assert f"run directory   {config.parent}/runs/rl\n" in plan
    assert plan.endswith("\nnothing was trained (--dry-run)\n")


@pytest.mark.parametrize(
    ("algorithm", "overrides", "rows"),
    [
        (
            "dapo",
            ["objective.epsilon=0.1", "objective.beta=0.04"],
            [
                "epsilon 0.1 set in objective; dapo has 0.2",
                "epsilon_high 0.28",
                "beta 0.04 set in objective; dapo has 0.0",
                "mask_truncated_completions true",
                "delta null",
            ],
        ),
        (
            "bnpo",
            ["objective.epsilon=0.1", "objective.delta=4"],
            [
                "epsilon 0.1 set in objective; bnpo has 0.2",
                "epsilon_high 0.1 follows epsilon; bnpo has 0.2",
                "delta 4.0 set in objective; bnpo has null",
            ],
        ),
    ],
)
def test_every_field_that_is_not_the_presets_is_told_with_what_it_replaces(
    algorithm: str, overrides: list[str], rows: list[str], unserved: Path
):
    plan = shown(unserved, "--set", f"algorithm={algorithm}", *(word for each in overrides for word in ("--set", each)))
    assert [row.split() for row in rows if row.split() not in words(plan)] == []


def test_an_algorithm_tells_where_it_differs_from_its_paper(unserved: Path):
    plan = shown(unserved, "--set", "algorithm=gspo")
    assert (
        "algorithm       gspo, arXiv:2507.18071: clips only where a generation serves several optimizer steps" in plan
    )


# From the micro-batch size, group size, micro-batches per step, steps_per_generation and passes: what a generation
# serves, the prompts and stride of an iteration, and the row of the third generation: its number, the step that
# generates it, the steps it serves and the iteration it samples.
WORKED = [
    ((4, 2, 2, 1, 1), "8 completions, 2 for each of 4 prompts, serve 1 optimizer step", (4, 1), "3 3 3 2"),
    ((4, 2, 2, 2, 1), "16 completions, 2 for each of 8 prompts, serve 2 optimizer steps", (8, 2), "3 5 5–6 4"),
    (
        (4, 2, 2, 1, 2),
        "8 completions, 2 for each of 4 prompts, serve 2 optimizer steps, in 2 passes",
        (4, 2),
        "3 5 5–6 4",
    ),
    (
        (4, 2, 2, 2, 2),
        "16 completions, 2 for each of 8 prompts, serve 4 optimizer steps, in 2 passes",
        (8, 4),
        "3 9 9–12 8",
    ),
    ((3, 2, 2, 1, 1), "6 completions, 2 for each of 3 prompts, serve 1 optimizer step", (3, 1), "3 3 3 2"),
]


@pytest.mark.parametrize(("numbers", "serves", "shape", "third"), WORKED)
def test_the_first_generations_are_those_of_the_schedule(
    numbers: tuple[int, ...], serves: str, shape: tuple[int, int], third: str, unserved: Path
):
    at_once, group, accumulation, per_generation, passes = numbers
    overrides = {
        "training.micro_batch_size": at_once,
        "training.rows_per_step": at_once * accumulation,
        "rollout.generations": group,
        "rollout.steps_per_generation": per_generation,
        "rollout.iterations": passes,
        "run.save_every": 4,
        "evaluation.every": 4,
    }
    plan = shown(unserved, *(word for key, value in overrides.items() for word in ("--set", f"{key}={value}")))
    assert f"generation      {serves}\n" in plan
    assert f"needs prompts_per_iteration: {shape[0]} and iteration_stride: {shape[1]}\n" in plan
    assert third.split() in words(plan)


def test_the_plan_tells_what_an_engine_gets_of_each_step(unserved: Path, monkeypatch: pytest.MonkeyPatch):
    assert "by hf, temperature" in shown(unserved)
    told = "which gets the adapter on CUDA, all weights on other devices, temperature"
    assert told in shown(unserved, "--set", "rollout.engine=vllm")
    servers = ("--set", "rollout.servers.urls=[http://127.0.0.1:8000]", "--set", "rollout.engine=vllm-server")
    told = "by vllm-server, which gets the adapter after each step, or all weights if it cannot be used as it is"
    assert told in shown(unserved, *servers)
    monkeypatch.setitem(ENGINES, "hf", EngineTraits("another", has_weights=True))
    assert "by hf, which gets the weights after each step, temperature" in shown(unserved)


def test_the_plan_tells_what_is_replayed(unserved: Path):
    replay = 'rollout.replay={share: {"0": 0, "50": 0.25}, fill: reserved, choose: recent, max_age: 4}'
    plan = shown(unserved, "--set", replay, "--set", "rollout.successes={share: 0.5}")
    assert "importance correction token_mask from 0.5 to 2\n" in plan
    assert "replay          up to 25% of the groups, in reserved slots; choose recent, at most 4 steps old and" in plan
    assert "successes       a solution (reward of 1 or more, at most 200 steps old) is put into 50% of" in plan


def test_a_server_that_does_not_answer_yet_is_told_in_a_line(unserved: Path, nowhere: str):
    plan = shown(unserved)
    assert plan.count(nowhere) == 1
    assert f"\nno dataserver answers at {nowhere} yet, so its curriculum was not checked\n" in plan
    assert plan.endswith("\nnothing was trained (--dry-run)\n")


def test_a_server_that_runs_is_asked(a_run: WriteRun, server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    config = a_run(dataserver={"config": None, "url": server.url, "token_env": "MY_TOKEN"})
    plan = shown(config)
    assert f"(config_id {server.client.get('/meta').json()['config_id']})\n" in plan
    assert "prompts         the first 2 have " in plan

    monkeypatch.setenv("MY_TOKEN", "wrong")
    assert f"error: the dataserver at {server.url} rejects the token: " in shown(config, exit_code=2)


def test_what_the_dataservers_config_has_wrong_is_told_in_its_own_words(a_run: WriteRun):
    config = a_run(data={"graders": {"says_a": {"type": "regexp", "pattern": "a"}}})
    refused = shown(config, exit_code=2)
    assert f"error: the dataserver of {config.parent}/data.yaml: " in refused
    assert "regexp" in refused
    assert "nothing was trained" not in refused


def test_numbers_that_do_not_fit_the_dataservers_are_refused_after_the_plan_of_the_step(a_run: WriteRun):
    refused = shown(a_run(), "--set", "training.rows_per_step=16", exit_code=2)
    assert "16 completions, the groups of 4 prompts" in refused
    assert (
        "error: the dataserver's prompts_per_iteration: 2 and iteration_stride: 1 do not fit this training" in refused
    )


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (
            ["lora=null", "evaluation=null", "training.max_steps=6", "rollout.max_prompt_tokens=20"],
            [
                "all weights trained\n",
                "10 held-out prompts are unused: the config has no evaluation section\n",
                "training.max_steps stops at step 6",
                "; 1 of them are longer than rollout.max_prompt_tokens 20 and would be skipped",
            ],
        ),
        (
            ["training.max_steps=12", "dataserver.beyond_last_stage=true", "rollout.max_prompt_tokens=510"],
            [
                "training.max_steps continues the last stage's mix until step 12",
                "rollout.max_prompt_tokens + max_new_tokens = 518 exceeds the model's context of 512 tokens",
            ],
        ),
    ],
)
def test_the_plan_tells_what_an_override_changes(overrides: list[str], lines: list[str], a_run: WriteRun):
    plan = shown(a_run(), *(word for each in overrides for word in ("--set", each)))
    assert [line for line in lines if line not in plan] == []


def test_an_adapter_to_go_on_from_must_be_one(a_run: WriteRun, nowhere: str, tiny_model: Path, tmp_path: Path):
    adapter = write_adapter(tiny_model, tmp_path / "adapter")
    config = a_run(lora=None, dataserver={"config": None, "url": nowhere})
    assert f"continuing from the adapter {adapter}\n" in shown(config, "--set", f"model.adapter={adapter}")
    refused = shown(config, "--set", f"model.adapter={tmp_path}", exit_code=2)
    assert refused.startswith(f"error: model.adapter: {tmp_path} has no adapter_config.json")


def test_the_plan_of_a_run_that_is_there_tells_what_a_start_would_do(left_alone: Path, nowhere: str, tmp_path: Path):
    shutil.copytree(left_alone.parent, tmp_path / "copy")
    config = tmp_path / "copy" / left_alone.name
    before = contents(config.parent)
    run = config.parent / "runs" / "rl"

    unserved = ("--set", f"dataserver={{url: '{nowhere}'}}")
    plan = shown(config, *unserved, exit_code=2)
    assert "Objective" in plan
    assert f"error: a run already exists in {run}; continue it with --resume, " in plan
    assert shown(config, *unserved, "--overwrite").endswith("nothing was trained (--dry-run)\n")

    assert f"{run} is finished: nothing is left to resume\n" in shown(config, "--resume")
    longer = ("--set", "training.max_steps=12", "--set", "dataserver.beyond_last_stage=true")
    assert f"{run} would continue from step 8\n" in shown(config, "--resume", *longer)

    refused = shown(config, "--resume", "--set", "training.seed=7", exit_code=2)
    assert "this would not be the same run, so it is not resumed; what changed:\n  training.seed: 0 → 7\n" in refused
    assert contents(config.parent) == before


CALL = """
import sys
sys.argv[0] = "toolkit-rl-train"
from posttrain.cli.rl_train import main
try:
    main()
finally:
    print(*sys.modules)
"""


def test_the_base_install_plans_what_it_can(a_run: WriteRun, tmp_path_factory: pytest.TempPathFactory):
    base = base_python(tmp_path_factory.mktemp("base"))
    finished = subprocess.run(
        [base, "-I", "-c", CALL, a_run(), "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **WIDE},
    )
    assert finished.returncode == 0, finished.stderr
    assert "needs prompts_per_iteration: 2 and iteration_stride: 1\n" in finished.stderr
    assert (
        "\nthe dataserver's curriculum was not checked: a dataserver started by the trainer needs fastapi, "
    ) in finished.stderr
    assert {"torch", "httpx", "transformers"}.isdisjoint(finished.stdout.split())
