"""The commands of the guide train on one device and on several, to the losses of one."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import torch

from gpu.cuda_runs import PRECISION, losses, write_sft
from running import BIN, metrics

pytestmark = pytest.mark.gpu

GUIDE = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
LINE = re.compile(r"   \S+/(torchrun .*--nproc-per-node (\d+) \S+/)?toolkit-sft sft\.yaml( --run-name.*)?")
COMMANDS = [(shlex.split(line), int(found[2] or 1)) for line in GUIDE.splitlines() if (found := LINE.fullmatch(line))]
POSSIBLE = [each for each in (1, 2, 8) if each <= torch.cuda.device_count()]


@pytest.mark.parametrize("devices", POSSIBLE)
@pytest.mark.parametrize("lora", [{"r": 4}, None], ids=["adapter", "all weights"])
def test_guide(devices: int, lora: dict[str, int] | None, tmp_path: Path, gpu_model: Path) -> None:
    sections = {"lora": lora, "training": {"rows_per_step": 8, "micro_batch_size": 1}}
    expected = losses("toolkit-sft", write_sft(tmp_path / "one", gpu_model, **sections))
    write_sft(tmp_path, gpu_model, **sections)
    commands = [words for words, number in COMMANDS if number == devices]
    assert len(commands) == (1 if devices == 1 else 2)
    for words in commands:
        placed = [str(BIN / Path(word).name) if word.startswith(".venv") else word for word in words]
        finished = subprocess.run(placed, cwd=tmp_path, capture_output=True, text=True, timeout=500)
        assert finished.returncode == 0, finished.stderr
        name = "shared" if "--run-name" in words else "sft"
        found = [row["loss"] for row in metrics(tmp_path / "runs" / name) if "loss" in row]
        assert found == pytest.approx(expected, abs=PRECISION)
