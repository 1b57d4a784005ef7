"""`benchmarks/gpu.py` runs to the end on any machine; here on a CPU with a tiny model and a few parts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # minutes

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"
SMALL = ("--size", "tiny", "--steps", "2", "--rows", "4", "--micro-batch", "2", "--length", "128")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What it printed and wrote for three parts, one of which cannot work on a CPU."""
    folder = tmp_path_factory.mktemp("gpu")
    parts = ("SFT: toolkit, unsloth, 4-bit", "SFT: TRL", "DPO: toolkit, hf")
    done = subprocess.run(
        [sys.executable, SCRIPT, *SMALL, "--output", folder / "gpu.json", "--only", *parts],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "gpu.json").read_text())


def test_every_part_is_a_row_and_one_that_fails_says_why(found):
    table, numbers = found
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == list(numbers["parts"])
    assert list(numbers["parts"]) == [
        "model: random weights",
        "SFT: toolkit, unsloth, 4-bit",
        "SFT: TRL",
        "DPO: toolkit, hf",
    ]
    refused = numbers["parts"]["SFT: toolkit, unsloth, 4-bit"]
    assert refused["error"].startswith("posttrain.errors.")  # is not installed, or needs a CUDA device
    assert "unsloth" in refused["error"]
    assert "failed: posttrain.errors." in rows[1]


def test_a_measured_part_has_its_rate_its_memory_and_its_losses(found):
    parts = found[1]["parts"]
    for name, unit in (("SFT: TRL", "tokens/s"), ("DPO: toolkit, hf", "pairs/s")):
        part = parts[name]
        assert part["unit"] == unit
        assert part["value"] > 0
        assert part["peak_gib"] > 0.1
        assert len(part["losses"]) == 2
    # A random model with 259 tokens has a loss of about ln 259 = 5.56; the DPO loss starts at log 2.
    assert 5 < parts["SFT: TRL"]["losses"][0] < 6
    assert parts["DPO: toolkit, hf"]["losses"][0] == pytest.approx(0.6931, abs=1e-3)


def test_versions_and_hardware_are_told(found):
    table, numbers = found
    assert numbers["machine"]["devices"] == ["no CUDA device"]
    assert table.startswith("no CUDA device; python ")
    assert {"torch", "transformers", "trl"} <= numbers["versions"].keys()
