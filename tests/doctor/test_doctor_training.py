"""Memory and disk are compared with what a config needs, and ten steps are trained."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from posttrain.doctor import training
from posttrain.doctor.findings import Asked
from posttrain.doctor.training import run_bytes, train_briefly


def test_a_small_run_has_room(asked: Callable[..., Asked]) -> None:
    small = asked()
    assert training.memory(small).state == "fine"
    assert training.disk(small).state == "fine"


def test_a_run_that_needs_too_much_memory_is_broken(asked: Callable[..., Asked], tmp_path: Path) -> None:
    huge = asked(
        training={"rows_per_step": 2**17, "micro_batch_size": 2**17},  # as many rows as the model has at once
        chat={"max_length": 512},
    )
    (tmp_path / "rows.jsonl").write_text(f'{{"prompt": "{"a" * 300}", "completion": "b"}}\n')
    found = training.memory(huge)
    assert found.state == "broken"
    assert "training.micro_batch_size: 131072 → 65536" in found.advice


def test_a_run_leaves_its_newest_checkpoints_the_best_an_unfinished_one_and_the_export(
    asked: Callable[..., Asked], tiny_model: Path
) -> None:
    weights = sum(tensor.size for tensor in load_file(tiny_model / "model.safetensors").values())
    config = asked(lora=None, run={"keep_checkpoints": 3}).config
    # float32 weights and two moments of AdamW: 12 bytes for each weight; the export has 4.
    assert run_bytes(config) == ((3 + 2) * 12 * weights + 4 * weights, 12 * weights)


def test_a_disk_that_is_too_small_is_broken(asked: Callable[..., Asked]) -> None:
    # More checkpoints than any disk has room for.
    found = training.disk(asked(run={"keep_checkpoints": 10**12}))
    assert found.state == "broken"
    assert "keep fewer checkpoints" in found.advice


@pytest.mark.parametrize("check", [training.memory, training.disk])
def test_what_is_not_there_is_not_estimated(check: Callable, asked: Callable[..., Asked]) -> None:
    found = check(asked(model={"name": "./nowhere"}))
    assert found.state == "unchecked"
    assert "nowhere" in found.told


def test_ten_steps_lower_the_loss(tmp_path: Path, tiny_model: Path) -> None:
    found = train_briefly(tmp_path, str(tiny_model))
    assert found.state == "fine", found.told
    assert found.told.startswith("10 steps: loss ")


def test_training_that_fails_is_broken_with_its_reason(tmp_path: Path) -> None:
    found = train_briefly(tmp_path, str(tmp_path / "nowhere"))
    assert found.state == "broken"
    assert "exit code 2" in found.told
    assert "nowhere" in found.told
