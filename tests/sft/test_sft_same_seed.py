"""The same config and seed give the same run, whatever else differs."""

import os
from pathlib import Path

import yaml

from posttrain.inspect.diff import compare
from posttrain.inspect.folders import read_run
from posttrain.runs.metrics import TIMING_KEYS
from running import metrics


def test_the_same_command_twice_gives_the_same_numbers(write_config, toolkit, tmp_path: Path):
    # Dropout is on, and the held-out rows are chosen by content.
    config = write_config(validation={"fraction": 0.2, "every": 4})
    toolkit("toolkit-sft", config, PYTHONHASHSEED="1")

    # Another hash seed, files that look newer, an empty cache of prepared data, and the data sets named in another
    # order.
    for file in ("a.jsonl", "b.jsonl"):
        os.utime(tmp_path / file, (2e9, 2e9))
    same = yaml.safe_load(config.read_text())
    same["datasets"] = dict(reversed(same["datasets"].items()))
    for stage in same["stages"]:
        stage["mix"] = dict(reversed(stage["mix"].items()))
    config.write_text(yaml.safe_dump(same, sort_keys=False))
    fresh = str(tmp_path / "cache")
    toolkit("toolkit-sft", config, "--run-name", "again", PYTHONHASHSEED="2", POSTTRAIN_TOOLKIT_CACHE=fresh)

    runs = tmp_path / "runs"
    assert len(metrics(runs / "run")) == 8 + 3
    assert metrics(runs / "again") == metrics(runs / "run")
    for file in ("adapter_model.safetensors", "checkpoint-8/optimizer.pt"):
        assert (runs / "again" / file).read_bytes() == (runs / "run" / file).read_bytes()
    comparison = compare(read_run(runs / "run"), read_run(runs / "again"))
    assert comparison.is_same, comparison


def test_what_is_left_out_of_the_comparison_are_times_and_memory():
    assert {"seconds", "tokens_per_second", "peak_memory_gib"} == TIMING_KEYS
