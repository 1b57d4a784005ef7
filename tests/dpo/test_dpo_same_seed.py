"""The same config and seed give the same run, whatever else differs."""

import os
import subprocess
from pathlib import Path

from dpo.dpo_runs import COMMAND, write_run
from posttrain.inspect.diff import compare
from posttrain.inspect.folders import read_run
from running import metrics


def test_the_same_command_twice_gives_the_same_numbers(tmp_path: Path, tiny_model: Path):
    config = write_run(tmp_path, tiny_model, validation={"dataset": {"path": "held_out.jsonl"}, "every": 2})

    def train(name: str, **environment: str) -> Path:
        finished = subprocess.run(
            [*COMMAND, str(config), "--run-name", name],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        assert finished.returncode == 0, finished.stderr
        return tmp_path / "runs" / name

    one = train("one", PYTHONHASHSEED="1")
    for file in ("pairs.jsonl", "held_out.jsonl"):
        os.utime(tmp_path / file, (2e9, 2e9))
    # An empty cache: the data is prepared and the reference's scores are computed again.
    other = train("other", PYTHONHASHSEED="2", POSTTRAIN_TOOLKIT_CACHE=str(tmp_path / "cache"))

    assert [row["step"] for row in metrics(one)] == [0, 1, 2, 2, 3, 3]
    assert metrics(other) == metrics(one)
    for file in ("adapter_model.safetensors", "checkpoint-3/optimizer.pt"):
        assert (other / file).read_bytes() == (one / file).read_bytes()
    comparison = compare(read_run(one), read_run(other))
    assert comparison.is_same, comparison
