"""A run trained through unsloth is merged as unsloth itself would merge it, which on a CPU needs no network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from merge_cases import weights

from posttrain.merge.merge import merge

SCRIPT = Path(__file__).with_name("unsloth_merging.py")


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run through unsloth, `runs/run`, and unsloth's own merge of its adapter and the base, `theirs`."""
    folder = tmp_path_factory.mktemp("merging")
    rows = [{"prompt": f"How many is {number}?", "completion": f"{number} apples"} for number in range(8)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": {"name": str(tiny_model), "dtype": "float32", "backend": "unsloth"},
        "lora": {"r": 4, "rslora": True},
        "datasets": {"a": {"path": "a.jsonl"}},
        "stages": [{"name": "one", "until_step": 3, "mix": {"a": 1}}],
        "training": {"rows_per_step": 4, "learning_rate": 1e-2},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder / "run.yaml"), "run", str(folder / "theirs")],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == 0, finished.stderr
    return folder


def test_the_merged_model_is_unsloths_but_for_the_last_bit(folder: Path, tiny_model: Path) -> None:
    result = merge(folder / "run.yaml", output=folder / "ours", dtype="bfloat16")
    assert result is not None
    assert result.verification is not None
    assert result.merged == 2 * 7  # seven projections in each of two layers
    ours, theirs, base = (weights(each) for each in (folder / "ours", folder / "theirs", tiny_model))
    assert ours.keys() == theirs.keys() == base.keys()
    same = total = 0
    for name, weight in ours.items():
        assert theirs[name].dtype == weight.dtype == torch.bfloat16
        # float32 sums that differ in their last bit may round to different bfloat16 values.
        torch.testing.assert_close(weight, theirs[name], rtol=2**-7, atol=1e-6)
        same, total = same + int((weight == theirs[name]).sum()), total + weight.numel()
    assert same > 0.999 * total
    learnt = "model.layers.0.mlp.down_proj.weight"
    assert (ours[learnt] - base[learnt].bfloat16()).abs().max() > 1e-3
