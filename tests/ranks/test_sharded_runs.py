"""A model that two processes share by FSDP2 trains to the numbers of one process that has all of it."""

import json
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from dpo.dpo_runs import TRAINING
from dpo.dpo_runs import write_run as write_pairs
from forked_command import run_forked
from ranks.connected_ranks import on_ranks
from ranks.rank_runs import (
    alone,
    folder_of,
    newest_checkpoint,
    ranks_of,
    said,
    started,
    steps_of,
    together,
    wait_for_step,
    write_sft,
)
from ranks.test_equal_ranks import require_close
from rl.rl_runs import write_run as write_prompts
from running import metrics

FSDP, DDP = {"kind": "fsdp2"}, {"kind": "ddp"}
SHARED = "each of 2 processes has a share of the weights"
ADAPTER = {"r": 4, "dropout": 0.0}
SFT: dict[str, dict[str, Any]] = {
    "adapter": {"lora": ADAPTER},
    "all weights": {"lora": None},
    "DoRA": {"lora": {**ADAPTER, "dora": True}},
    "modules to save": {"lora": {**ADAPTER, "modules_to_save": ["embed_tokens", "lm_head"]}},
    "added tokens": {"lora": ADAPTER, "model": {"added_tokens": ["<one>", "<two>"]}},
    "checkpointing": {"lora": ADAPTER, "training": {"gradient_checkpointing": True}},
    "padding": {"lora": None, "training": {"batching": "by_length"}},
    "EMA": {"lora": ADAPTER, "training": {"ema": {"decay": 0.8}}},
    "schedule-free": {"lora": ADAPTER, "training": {"optimizer": "schedule_free_adamw", "schedule": "constant"}},
    "SGD": {"lora": ADAPTER, "training": {"optimizer": "sgd", "momentum": 0.9}},
}
UNTIED = ("adapter", "all weights", "modules to save", "added tokens")
DPO: dict[str, dict[str, Any]] = {
    "a cached reference": {"lora": ADAPTER},
    "a live reference": {"lora": ADAPTER, "reference": {"type": "live"}},
    "all weights": {"lora": None},
    "a separate reference": {"lora": None},
    "no reference": {"lora": ADAPTER, "method": {"type": "simpo"}},
}
GRPO: dict[str, dict[str, Any]] = {
    "adapter": {"lora": ADAPTER, "objective": {"beta": 0.1}},
    "all weights": {"lora": None},
}
PROMPTS: dict[str, Any] = {
    "data": {"stages": [{"name": "one", "until_step": 20, "mix": {"a": 1, "b": 1}}]},
    "model": {"dtype": "float32"},
    "lora": ADAPTER,
    "rollout": {"placement": "child"},
    "evaluation": {"every": 10},
    "training": {"micro_batch_size": 2, "learning_rate": 1e-3},
    "run": {"save_every": 10},
}


def write(folder: Path, model: Path, name: str, /, **changes: Any) -> Path:
    """A config of 20 steps in float32; of its 7 held-out rows, one process gets one more than the other."""
    rows = [{"prompt": f"How many is {n}? " * (n % 3 + 1), "completion": f"{n} pears"} for n in range(7)]
    (folder / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections: dict[str, Any] = {
        "model": {"name": str(model), "dtype": "float32"},
        "stages": [{"name": "one", "until_step": 20, "mix": {"a": 1}}],
        "training": {"rows_per_step": 4, "micro_batch_size": 1, "learning_rate": 1e-3},
        "validation": {"dataset": {"path": "held_out.jsonl"}, "every": 10},
        "run": {"save_every": 5, "keep_checkpoints": 99},
    }
    for key, change in changes.items():
        sections[key] = {**sections.get(key, {}), **change} if isinstance(change, dict) else change
    return write_sft(folder, model, name, **sections)


def require_equal_runs(one: Path, two: Path, *, rel: float = 1e-6) -> None:
    """Every number of two runs agrees, and so do their weights: those of the last checkpoint."""
    require_close(metrics(folder_of(one)), metrics(folder_of(two)), rel=rel, abs=1e-5)
    weights, others = (weights_of(config) for config in (one, two))
    assert weights.keys() == others.keys()
    for key, weight in weights.items():
        assert_close(others[key], weight, atol=1e-5, rtol=1e-4)


def weights_of(config: Path) -> dict[str, torch.Tensor]:
    files = newest_checkpoint(folder_of(config)).glob("*model*.safetensors")
    return {name: each for file in files for name, each in load_file(file).items()}


def cases(names: Iterable[str], *quick: str) -> list[Any]:
    """The cases; those that are not named as quick are among the long tests."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.long) for name in names]


TRAINED = pytest.mark.parametrize("case", cases(("adapter", "all weights"), "all weights"))
RESUMED = pytest.mark.parametrize("case", cases(("adapter", "all weights", "EMA", "schedule-free"), "all weights"))


@pytest.mark.parametrize("case", cases(SFT, "all weights"))
def test_sft(tmp_path: Path, tiny_model: Path, case: str) -> None:
    one = write(tmp_path, tiny_model, "one", **SFT[case])
    two = write(tmp_path, tiny_model, "two", **SFT[case], parallel=FSDP)
    alone("toolkit-sft", one)
    told = together("toolkit-sft", two)
    assert SHARED in told.stdout + told.stderr
    require_equal_runs(one, two)


@pytest.mark.parametrize("case", cases(UNTIED))
def test_sft_with_a_head_of_its_own(tmp_path: Path, tiny_model: Path, case: str) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).clone())
    shutil.copytree(tiny_model, tmp_path / "untied")
    model.save_pretrained(tmp_path / "untied")
    # Adam would make much of a difference in the last digit of a gradient near 0.
    sections = {**SFT[case], "training": {"optimizer": "sgd", "learning_rate": 0.1}}
    one = write(tmp_path, tmp_path / "untied", "one", **sections)
    two = write(tmp_path, tmp_path / "untied", "two", **sections, parallel=FSDP)
    alone("toolkit-sft", one)
    together("toolkit-sft", two)
    require_equal_runs(one, two)


@pytest.mark.long
@TRAINED
def test_in_16_bits_the_losses_are_those_of_one_process_but_for_rounding(
    tmp_path: Path, tiny_model: Path, case: str
) -> None:
    shutil.copytree(tiny_model, tmp_path / "stored")
    AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16).save_pretrained(tmp_path / "stored")
    sections: dict[str, Any] = {"model": {"dtype": "bfloat16"}, **SFT[case]}
    one = write(tmp_path, tmp_path / "stored", "one", **sections)
    two = write(tmp_path, tmp_path / "stored", "two", **sections, parallel=FSDP)
    alone("toolkit-sft", one)
    together("toolkit-sft", two)
    losses = [[row["loss"] for row in steps_of(folder_of(config))] for config in (one, two)]
    assert losses[1] == pytest.approx(losses[0], abs=2e-3)


@pytest.mark.parametrize("case", cases(DPO, "a cached reference"))
def test_dpo(tmp_path: Path, tiny_model: Path, case: str) -> None:
    sections: dict[str, Any] = {
        "stages": [{"name": "one", "until_step": 20, "mix": {"a": 1}}],
        "training": {**TRAINING, "micro_batch_size": 1, "learning_rate": 1e-3},
        "validation": {"dataset": {"path": "held_out.jsonl"}, "every": 10},
        **DPO[case],
    }
    if case == "a separate reference":
        sections["reference"] = {"type": "model", "name": str(tiny_model), "dtype": "float32"}
    one = write_pairs(tmp_path, tiny_model, "one", **sections)
    two = write_pairs(tmp_path, tiny_model, "two", **sections, parallel=FSDP)
    alone("toolkit-dpo", one)
    told = together("toolkit-dpo", two)
    assert SHARED in told.stdout + told.stderr
    require_equal_runs(one, two)


@pytest.mark.parametrize("case", cases(GRPO, "adapter"))
def test_grpo(tmp_path: Path, tiny_model: Path, case: str) -> None:
    sections = {**PROMPTS, **GRPO[case]}
    one = write_prompts(tmp_path / "one", tiny_model, name="one", **sections)
    two = write_prompts(tmp_path / "two", tiny_model, name="two", **sections, parallel=FSDP)
    alone("toolkit-rl-train", one)
    told = together("toolkit-rl-train", two)
    assert SHARED in told.stdout + told.stderr
    assert any(row["loss"] for row in steps_of(folder_of(one)))
    require_equal_runs(one, two, rel=1e-3)


@pytest.mark.long
@TRAINED
def test_every_command_reads_the_checkpoints(tmp_path: Path, tiny_model: Path, case: str) -> None:
    config = write(tmp_path, tiny_model, "run", **SFT[case], parallel=FSDP)
    together("toolkit-sft", config)
    at_ten = ("--checkpoint", "10")
    verified = run_forked(["toolkit-runs", "verify", folder_of(config)])
    assert verified.returncode == 0 and "fails" not in verified.stdout, verified.stdout
    if case == "adapter":
        alone("toolkit-merge", config, *at_ten)
    alone("toolkit-predict", config, str(tmp_path / "held_out.jsonl"), str(tmp_path / "answers.jsonl"), *at_ten)
    assert len((tmp_path / "answers.jsonl").read_text().splitlines()) == 7
    exported = {each.name for each in folder_of(config).iterdir()}
    assert not any(name.startswith("optimizer") for name in exported)


@RESUMED
def test_a_killed_process_changes_nothing_after_a_resume(tmp_path: Path, tiny_model: Path, case: str) -> None:
    whole, killed = (write(tmp_path, tiny_model, name, **SFT[case], parallel=FSDP) for name in ("whole", "killed"))
    together("toolkit-sft", whole)
    with started("toolkit-sft", killed) as launcher:
        wait_for_step(killed, 7, launcher)
        ranks_of(launcher)[1].send_signal(signal.SIGKILL)
        launcher.wait(120)
    told = said(killed, 0)
    assert told.count("error:") == told.count("another of this run's 2 processes ended") == 1
    together("toolkit-sft", killed, "--resume")
    assert steps_of(folder_of(killed)) == steps_of(folder_of(whole))
    weights, others = weights_of(whole), weights_of(killed)
    assert all(torch.equal(weights[key], others[key]) for key in weights)


@pytest.mark.long
@RESUMED
def test_a_run_goes_on_with_other_processes(tmp_path: Path, tiny_model: Path, case: str) -> None:
    whole = write(tmp_path, tiny_model, "whole", **SFT[case], parallel=FSDP)
    together("toolkit-sft", whole)
    for name, processes in (("one", 1), ("four", 4)):
        config = write(tmp_path, tiny_model, name, **SFT[case], parallel=FSDP)
        shutil.copytree(folder_of(whole), folder_of(config))
        forget_after(folder_of(config), 10)
        refused = together("toolkit-sft", config, "--resume", processes=processes, expect=2 if processes == 1 else 1)
        assert f"processes: 2 → {processes}" in refused.stderr and "--reshard" in refused.stderr
        together("toolkit-sft", config, "--reshard", processes=processes)
        require_equal_runs(whole, config)
        manifest = json.loads((folder_of(config) / "manifest.json").read_text())
        assert f"processes: 2 → {processes}" in manifest["resumed"][-1]["changed"]
        assert manifest["identity"]["processes"] == processes


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "processes", "after"),
    [
        pytest.param(FSDP, 1, FSDP, id="one process"),
        pytest.param(DDP, 2, FSDP, id="whole to shared"),
        pytest.param(FSDP, 2, DDP, id="shared to whole"),
    ],
)
def test_a_run_goes_on_where_weights_are_held_otherwise(
    tmp_path: Path, tiny_model: Path, before: dict[str, Any], processes: int, after: dict[str, Any]
) -> None:
    whole = write(tmp_path, tiny_model, "whole", lora=None, parallel=before)
    config = write(tmp_path, tiny_model, "other", lora=None, parallel=after)
    together("toolkit-sft", whole, processes=processes)
    shutil.copytree(folder_of(whole), folder_of(config))
    forget_after(folder_of(config), 10)
    together("toolkit-sft", config, "--reshard")
    require_equal_runs(whole, config)


@pytest.mark.long
def test_grpo_goes_on_with_other_processes(tmp_path: Path, tiny_model: Path) -> None:
    whole = write_prompts(tmp_path / "whole", tiny_model, name="whole", **PROMPTS, parallel=FSDP)
    together("toolkit-rl-train", whole)
    for name, processes in (("one", 1), ("four", 4)):
        config = write_prompts(tmp_path / name, tiny_model, name=name, **PROMPTS, parallel=FSDP)
        shutil.copytree(folder_of(whole), folder_of(config))
        shutil.copy(whole.parent / "journal.sqlite", config.parent)
        forget_after(folder_of(config), 10)
        together("toolkit-rl-train", config, "--reshard", processes=processes)
        require_equal_runs(whole, config, rel=1e-3)


def forget_after(folder: Path, step: int) -> None:
    """Bring the run in `folder` back to a checkpoint."""
    for later in folder.glob("checkpoint-*"):
        if int(later.name.removeprefix("checkpoint-")) > step:
            shutil.rmtree(later)
    for name in ("result.json", "best"):
        (folder / name).unlink(missing_ok=True)


def held(model: Path) -> tuple[int, int]:
    """Weights of which this process has values after sharding, and all weights."""
    from transformers import AutoModelForCausalLM

    from posttrain.models.weights.sharding import shard

    loaded: Any = AutoModelForCausalLM.from_pretrained(model)
    shard(loaded, torch.device("cpu"))
    parameters = list(loaded.parameters())
    return sum(each.to_local().numel() for each in parameters), sum(each.numel() for each in parameters)


def test_each_process_holds_half_of_the_weights(tmp_path: Path, tiny_model: Path) -> None:
    (first, everything), (second, _) = on_ranks(held, tmp_path, tiny_model)
    assert first + second == everything
    assert first == pytest.approx(everything / 2, rel=0.01)
