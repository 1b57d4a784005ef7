"""Two processes train a run to the same numbers as one."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from dpo.dpo_runs import TRAINING, run, write_run
from running import metrics

# Micro-batches of one pair: each process has two of the four pairs of a step, and three or four of seven held-out ones.
SECTIONS: dict[str, Any] = {
    "training": {**TRAINING, "micro_batch_size": 1, "optimizer": "sgd"},
    "validation": {"dataset": {"path": "held_out.jsonl"}, "every": 2},
}
KTO: dict[str, Any] = {
    **SECTIONS,
    "method": {"type": "kto"},
    "training": {**TRAINING, "rows_per_step": 8, "micro_batch_size": 2, "optimizer": "sgd"},
}


@pytest.mark.parametrize(
    "sections", [SECTIONS, {**SECTIONS, "reference": {"type": "live"}}, KTO], ids=["cached", "live", "kto"]
)
def test_two_processes_train_to_the_same_numbers_as_one(
    sections: dict[str, Any], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = []
    for processes in (1, 2):
        # Each fills its own cache.
        monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / f"cache{processes}"))
        config = write_run(tmp_path, tiny_model, name=f"by{processes}", **sections)
        folders.append(run(config, processes=processes))

    one, two = (metrics(folder) for folder in folders)
    assert [row["step"] for row in one] == [row["step"] for row in two]
    for alone, together in zip(one, two, strict=True):
        # A single process pads less; all else is the same.
        alone.pop("padding_share", None)
        together.pop("padding_share", None)
        assert {name: value for name, value in together.items() if isinstance(value, str)} == {
            name: value for name, value in alone.items() if isinstance(value, str)
        }
        numbers = [{k: v for k, v in row.items() if not isinstance(v, str)} for row in (alone, together)]
        assert numbers[1] == pytest.approx(numbers[0], rel=1e-4, abs=2e-5)
    weights, others = (load_file(folder / "adapter_model.safetensors") for folder in folders)
    for name, weight in weights.items():
        assert_close(others[name], weight, atol=1e-5, rtol=1e-4)
    assert json.loads((folders[1] / "manifest.json").read_text())["identity"]["processes"] == 2
