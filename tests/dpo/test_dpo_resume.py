"""A run that is killed and resumed equals an uninterrupted one bit for bit."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from dpo.dpo_runs import COMMAND, HELD_OUT, TRAINING, build, run, write_rows, write_run
from posttrain.base.cache import cache_dir
from posttrain.config.load import load_config
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.train import train
from posttrain.errors import ConfigError
from running import kill_after, metrics

STAGES = [{"name": "one", "until_step": 4, "mix": {"a": 1}}, {"name": "two", "until_step": 8, "mix": {"a": 1}}]
SECTIONS: dict[str, Any] = {
    "lora": {"r": 4},
    "stages": STAGES,
    "training": {**TRAINING, "micro_batch_size": 2, "schedule": "cosine"},
    "run": {"save_every": 3, "keep_checkpoints": 9},
    "validation": {"dataset": {"path": "held_out.jsonl"}, "every": 4},
}
FILES = ("adapter_model.safetensors", "checkpoint-8/optimizer.pt")


def test_a_killed_run_goes_on_bit_for_bit(tiny_model: Path, tmp_path: Path) -> None:
    # Checkpoints are at steps 3, 4 (the best so far) and 6; the kill comes shortly after step 5.
    left_alone = run(write_run(tmp_path, tiny_model, name="left_alone", **SECTIONS))
    killed = write_run(tmp_path, tiny_model, name="killed", **SECTIONS)
    folder = tmp_path / "runs" / "killed"
    kill_after(7, killed, folder, COMMAND)
    assert not (folder / "result.json").exists()
    run(killed, "--resume")

    assert metrics(folder) == metrics(left_alone)
    for file in FILES:
        assert (folder / file).read_bytes() == (left_alone / file).read_bytes()


@pytest.fixture
def sft_adapter(tiny_model: Path, tmp_path: Path) -> Path:
    """An adapter trained by a separate run."""
    (tmp_path / "sft").mkdir()
    built = build(write_run(tmp_path / "sft", tiny_model, lora={"r": 4}, method={"type": "simpo"}))
    built.train()
    built.loaded.model.save_pretrained(tmp_path / "sft" / "adapter")
    return tmp_path / "sft" / "adapter"


@pytest.mark.parametrize("reference", ["cached", "live"])
def test_a_run_from_an_adapter_goes_on_with_what_it_trained_and_not_with_its_reference(
    reference: str, tiny_model: Path, tmp_path: Path, sft_adapter: Path
) -> None:
    model = {"name": str(tiny_model), "adapter": str(sft_adapter), "dtype": "float32"}
    sections = {**SECTIONS, "model": model, "lora": ..., "reference": {"type": reference}}
    config = load_config(write_run(tmp_path, tiny_model, **sections), DPOConfig)
    train(config, "run")
    folder = tmp_path / "runs" / "run"
    assert not list(folder.rglob("reference"))
    whole = metrics(folder), [(folder / file).read_bytes() for file in FILES]
    assert whole[1][0] != (sft_adapter / "adapter_model.safetensors").read_bytes()

    # As a kill after step 7 would leave it. The reference is still the starting model, even with its scores deleted.
    shutil.rmtree(folder / "checkpoint-8")
    (folder / "result.json").unlink()
    shutil.rmtree(cache_dir() / "reference", ignore_errors=True)
    train(config, "run", resume=True)
    assert (metrics(folder), [(folder / file).read_bytes() for file in FILES]) == whole


@pytest.mark.parametrize(
    ("section", "value", "named"),
    [
        ("method", {"type": "dpo", "beta": 0.2}, r"method\.beta: 0\.1 → 0\.2"),
        ("method", {"type": "ipo"}, r"method\.type: dpo → ipo"),
        ("reference", {"type": "live"}, r"reference\.type: cached → live"),
        ("chat", {"max_length": 128}, r"chat\.max_length: 256 → 128"),
        ("stages", [{**STAGES[0], "until_step": 2}, STAGES[1]], "the stages before step"),
    ],
)
def test_a_resume_that_would_be_another_run_is_refused_by_name(
    section: str, value: Any, named: str, tiny_model: Path, tmp_path: Path
) -> None:
    first = write_run(tmp_path, tiny_model, **SECTIONS)
    train(load_config(first, DPOConfig, ["training.max_steps=4"]), "run")
    changed = load_config(write_run(tmp_path, tiny_model, **{**SECTIONS, section: value}), DPOConfig)
    with pytest.raises(ConfigError, match=named):
        train(changed, "run", resume=True)
    assert (tmp_path / "runs" / "run" / "checkpoint-4").is_dir()


def stopped_halfway(folder: Path) -> None:
    """Turn a finished run into one that was killed after step 7."""
    shutil.rmtree(folder / "checkpoint-8")
    (folder / "result.json").unlink()


@pytest.mark.parametrize("reference", ["cached", "live"])
def test_an_adapter_that_was_trained_again_in_the_meantime_is_another_reference(
    reference: str, tiny_model: Path, tmp_path: Path, sft_adapter: Path
) -> None:
    model = {"name": str(tiny_model), "adapter": str(sft_adapter), "dtype": "float32"}
    sections = {**SECTIONS, "model": model, "lora": ..., "reference": {"type": reference}}
    config = load_config(write_run(tmp_path, tiny_model, **sections), DPOConfig)
    train(config, "run")
    stopped_halfway(tmp_path / "runs" / "run")
    file = sft_adapter / "adapter_model.safetensors"
    before = file.read_bytes()
    save_file({name: weight * 2 for name, weight in load_file(file).items()}, file)
    with pytest.raises(ConfigError, match=r"\n  weights: \w+ → \w+\n"):
        train(config, "run", resume=True)
    # With the old weights restored, it is the same run again.
    file.write_bytes(before)
    assert train(config, "run", resume=True)["steps"] == 8


def test_another_separate_reference_in_the_same_folder_is_told(tiny_model: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tiny_model, tmp_path / "other"))
    reference = {"type": "model", "name": str(other), "dtype": "float32"}
    config = load_config(write_run(tmp_path, tiny_model, **{**SECTIONS, "reference": reference}), DPOConfig)
    train(config, "run")
    stopped_halfway(tmp_path / "runs" / "run")
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"weights of reference: \w+ → \w+"):
        train(config, "run", resume=True)


def test_held_out_rows_that_were_changed_are_told(tiny_model: Path, tmp_path: Path) -> None:
    config = load_config(write_run(tmp_path, tiny_model, **SECTIONS), DPOConfig)
    train(config, "run")
    stopped_halfway(tmp_path / "runs" / "run")
    write_rows(tmp_path / "held_out.jsonl", HELD_OUT[1:])
    with pytest.raises(ConfigError, match=r"\n  validation\.dataset: \w+ → \w+\n"):
        train(config, "run", resume=True)


def test_a_longer_last_stage_goes_on_and_says_what_that_does(
    tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Stages in epochs: 4 pairs in steps of 4, so an epoch is a step.
    stages = [{"name": "one", "epochs": 4.0}]
    train(load_config(write_run(tmp_path, tiny_model, **{**SECTIONS, "stages": stages}), DPOConfig), "run")
    longer = write_run(tmp_path, tiny_model, **{**SECTIONS, "stages": [{"name": "one", "epochs": 6.0}]})
    result = train(load_config(longer, DPOConfig), "run", resume=True)
    assert result["steps"] == result["max_steps"] == 6
    assert "the schedule now spans 6 steps instead of 4" in " ".join(capfd.readouterr().err.split())


def test_a_finished_run_is_neither_trained_again_nor_overwritten(tiny_model: Path, tmp_path: Path) -> None:
    config = load_config(write_run(tmp_path, tiny_model), DPOConfig)
    first = train(config, "run")
    assert train(config, "run", resume=True) == first
    with pytest.raises(ConfigError, match="--resume, replace it with --overwrite"):
        train(config, "run")
