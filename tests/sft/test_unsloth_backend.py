"""Supervised fine-tuning through unsloth, compared run by run with the hf backend, each in its own process.

On a CPU both train the same: unsloth lets PEFT initialize the adapter from the same seed and leaves the layers to
transformers. Only a new adapter's layers round differently: unsloth uses PEFT's, the hf backend the toolkit's. Without
them the runs are equal bit for bit. On a CUDA device unsloth's kernels also round differently, and a new adapter may
start from other random numbers, so only runs that continue from one adapter could be compared as closely. That is not
tested here.
"""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from running import metrics
from several_runs import BEFORE_UNSLOTH, command, in_one_process, numbers, require_close_weights
from sharp_model import write_adapter

ADDED = ("<think>", "</think>")
# Overrides of each run of three steps. The first two continue from one adapter.
GIVEN = ["lora={}", "model.adapter=../adapter"]
RUNS = {
    "given": GIVEN,
    "sgd": [*GIVEN, "training.optimizer=sgd", "training.learning_rate=0.1"],
    "new": ["lora.dropout=0.1"],
    "checkpointing": ["lora.dropout=0.1", "training.gradient_checkpointing=true"],
    "bfloat16": ["model.dtype=bfloat16"],
    "dora": ["lora.dora=true", "lora.rslora=true", "lora.alpha=6"],
    "auto": ["lora.target_modules=auto"],
    "tokens": [f"model.added_tokens={json.dumps(ADDED)}"],
    "embedding": ['lora.modules_to_save=["embed_tokens"]', f"model.added_tokens={json.dumps(ADDED)}"],
    "full": ["lora=null", "training.learning_rate=1e-3"],
}


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of both backends, in `runs/<backend>-<run>`; each backend ran in the folder `<backend>`."""
    folder = tmp_path_factory.mktemp("backends")
    config = write_config(folder, tiny_model)
    write_adapter(tiny_model, folder / "adapter")
    for backend in ("hf", "unsloth"):
        (folder / backend).mkdir()

        def run(name: str, *overrides: str, backend: str = backend) -> list[str]:
            return command("toolkit-sft", config, f"{backend}-{name}", f"model.backend={backend}", *overrides)

        stopped = run("stopped", *RUNS["new"], "training.max_steps=2")
        runs = [run(name, *overrides) for name, overrides in RUNS.items()]
        said = in_one_process(*runs, stopped, folder=folder / backend)
        (folder / f"{backend}.txt").write_text(said)
    return folder


def write_config(folder: Path, tiny_model: Path) -> Path:
    rows = [
        {
            "prompt": f"How many is {number}? " * (number % 4 + 1),
            "completion": f"{ADDED[0]}{number}{ADDED[1]} apples " * (number % 5 + 1),
        }
        for number in range(12)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": {"name": str(tiny_model), "dtype": "float32"},
        "lora": {"r": 4},
        "chat": {"max_length": 256},
        "datasets": {"a": {"path": "a.jsonl"}},
        "stages": [{"name": "one", "until_step": 3, "mix": {"a": 1}}],
        "training": {
            "rows_per_step": 4,
            "micro_batch_size": 2,
            "batching": "by_length",
            "learning_rate": 1e-2,
            "schedule": "constant",
        },
        "run": {"save_every": 1, "keep_checkpoints": 9},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def both(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / "runs" / f"hf-{name}", folder / "runs" / f"unsloth-{name}"


@pytest.mark.parametrize("name", RUNS)
def test_three_steps_through_unsloth_lose_what_three_steps_through_hf_lose(folder: Path, name: str) -> None:
    hf, unsloth = both(folder, name)
    assert [row["order_hash"] for row in metrics(unsloth)] == [row["order_hash"] for row in metrics(hf)]
    expected, found = numbers(hf, "loss", "grad_norm"), numbers(unsloth, "loss", "grad_norm")
    assert len(found) == 3
    assert expected[0] != pytest.approx(expected[2], abs=1e-2)  # something is learnt, so it could differ
    # bfloat16 has 8 significant bits.
    within = {"abs": 1e-2} if name == "bfloat16" else {"abs": 1e-4}
    for step, wanted in zip(found, expected, strict=True):
        assert step == pytest.approx(wanted, **within)


@pytest.mark.parametrize("name", [name for name in RUNS if name not in ("bfloat16", "full")])
def test_the_trained_adapter_is_the_same(folder: Path, name: str) -> None:
    require_close_weights(*both(folder, name), within=1e-4)
    described = [json.loads((run / "adapter_config.json").read_text()) for run in both(folder, name)]
    assert _shape(described[0]) == _shape(described[1])


def _shape(described: dict) -> dict:
    unordered = ("target_modules", "modules_to_save")
    lists = {key: sorted(described[key] or []) for key in unordered if not isinstance(described[key], str)}
    return {**described, **lists}


def test_without_adam_a_run_that_goes_on_from_an_adapter_is_the_same_bit_for_bit(folder: Path) -> None:
    hf, unsloth = both(folder, "sgd")
    assert metrics(unsloth) == metrics(hf)
    require_close_weights(hf, unsloth, within=0)


def test_a_fully_trained_model_is_the_same(folder: Path) -> None:
    require_close_weights(*both(folder, "full"), within=1e-4, file="model.safetensors")


def test_the_rows_of_added_tokens_are_trained_and_only_those(folder: Path) -> None:
    hf, unsloth = (load_file(run / "adapter_model.safetensors") for run in both(folder, "tokens"))
    [rows] = [name for name in unsloth if "embed_tokens" in name]
    assert unsloth[rows].shape == (2, 64)
    started = load_file(folder / "runs" / "unsloth-tokens" / "checkpoint-1" / "adapter_model.safetensors")
    assert (unsloth[rows] - started[rows]).abs().amin(dim=1).min() > 0  # every number of every row
    torch.testing.assert_close(unsloth[rows], hf[rows], atol=1e-4, rtol=0)


def test_gradient_checkpointing_changes_no_number(folder: Path) -> None:
    _, plain = both(folder, "new")
    _, recomputed = both(folder, "checkpointing")
    assert metrics(recomputed) == metrics(plain)
    require_close_weights(plain, recomputed, within=0)


def test_a_stopped_run_goes_on_bit_for_bit(folder: Path, toolkit) -> None:
    config, name = folder / "run.yaml", "unsloth-stopped"
    overrides = ("model.backend=unsloth", *RUNS["new"])
    _, whole = both(folder, "new")
    stopped = folder / "runs" / name
    assert len(metrics(stopped)) == 2
    toolkit(*command("toolkit-sft", config, name, *overrides), "--resume")
    assert metrics(stopped) == metrics(whole)
    for file in ("adapter_model.safetensors", "checkpoint-3/optimizer.pt"):
        assert (stopped / file).read_bytes() == (whole / file).read_bytes()


def test_unsloth_comes_before_what_it_rewrites_and_leaves_nothing_where_it_is_started(folder: Path) -> None:
    assert [file.name for file in (folder / "unsloth").iterdir()] == [BEFORE_UNSLOTH]
    assert json.loads((folder / "unsloth" / BEFORE_UNSLOTH).read_text()) == []


def test_what_unsloth_says_is_no_part_of_what_a_command_prints(folder: Path) -> None:
    assert (folder / "unsloth.txt").read_text() == (folder / "hf.txt").read_text()


def test_an_8bit_optimizer_without_a_cuda_device_is_refused_whatever_the_backend(write_config, toolkit) -> None:
    for backend in ("hf", "unsloth"):
        options = (f"model.backend={backend}", "training.optimizer=adamw_8bit")
        said = toolkit(
            "toolkit-sft", write_config(), *(word for each in options for word in ("--set", each)), expect=2
        ).stderr
        assert re.search(r"training\.optimizer: adamw_8bit needs (bitsandbytes and )?a CUDA device", said)
