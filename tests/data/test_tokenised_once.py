"""A data set is tokenised by one process of those that want it, and a killed one leaves nothing in the way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

PREPARE = """
import sys
from transformers import AutoTokenizer
from posttrain.base.console import console
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.data.preparation import prepare_dataset

tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
dataset = prepare_dataset("sums", DatasetConfig(path=sys.argv[1]), ChatConfig(), tokenizer, "error", console.print)
print(dataset.token_digest().hex())
"""


@pytest.fixture
def start(own_cache: Path, tmp_path: Path, tiny_model: Path):
    """`start(**environment)` begins to prepare 20,000 rows in a process of its own."""
    with (tmp_path / "rows.jsonl").open("w", encoding="utf-8") as file:
        for number in range(20_000):
            file.write(json.dumps({"prompt": f"{number} + 1?", "completion": str(number + 1)}) + "\n")
    command = [sys.executable, "-c", PREPARE, str(tmp_path / "rows.jsonl"), str(tiny_model)]

    def begin(**environment: str) -> "subprocess.Popen[str]":
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env={**os.environ, **environment}, **pipes)

    return begin


def until_it_tokenises(process: "subprocess.Popen[str]", cache: Path) -> None:
    while not any(cache.glob(".*.tmp/ids.npy")) and process.poll() is None:
        time.sleep(0.002)
    assert process.poll() is None, process.communicate()


@pytest.mark.parametrize("ranks", [{}, {"WORLD_SIZE": "2"}], ids=["two commands", "two ranks"])
def test_one_process_tokenises_and_the_other_waits_and_says_for_whom(start, own_cache: Path, ranks: dict[str, str]):
    first = start(**{**ranks, "RANK": "1"} if ranks else {})
    until_it_tokenises(first, own_cache)
    first.send_signal(signal.SIGSTOP)  # for as long as the second one takes to start
    second = start(**{**ranks, "RANK": "0"} if ranks else {})
    assert second.stderr is not None
    line = second.stderr.readline()
    first.send_signal(signal.SIGCONT)
    told = [process.communicate() for process in (first, second)]

    assert line.startswith(f"waiting for process {first.pid} on ")
    assert line.endswith(", which is tokenising sums\n")
    assert [first.returncode, second.returncode] == [0, 0], told
    assert told[0][0] == told[1][0] != ""
    assert ("tokenising sums (" in told[0][1]) == (not ranks)  # of ranks only the main process prints
    assert told[1][1] == ""
    assert len(list(own_cache.iterdir())) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_what_a_stopped_process_began_is_removed_by_the_next_one(start, own_cache: Path, how: signal.Signals):
    first = start()
    until_it_tokenises(first, own_cache)
    first.send_signal(how)
    first.communicate()
    assert [each for each in own_cache.glob("*") if not each.name.startswith(".")] == []

    second = start()
    said = second.communicate()[1]
    assert second.returncode == 0 and "tokenising sums (" in said
    assert [each.name for each in own_cache.iterdir() if each.name.startswith(".")] == []
    assert len(list(own_cache.iterdir())) == 1
