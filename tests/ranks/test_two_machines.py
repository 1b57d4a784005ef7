"""Two torchrun agents that meet on loopback train one run, as those of two machines do."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from dataserver.graders.services import free_port
from dataserver.serving import serving
from ranks.rank_runs import alone, folder_of, wait_for_step, write_sft
from ranks.test_equal_ranks import require_close
from ranks.test_sharded_runs import FSDP, PROMPTS, require_equal_runs, write_prompts
from running import BIN, metrics
from test_dataserver_docs import blocks

pytestmark = pytest.mark.long

PAGE = Path(__file__).parents[2] / "docs" / "ranks.md"
EXPORTED, SHOWN = next(block for block in blocks(PAGE.read_text(), "") if "first-machine" in block).strip().splitlines()
# In torch 2.13, who joins later waits for an address that the first process tells once, unless this is set.
REJOINS = dict([EXPORTED.removeprefix("export ").split("=")])


@contextmanager
def agent(config: Path, port: int, *, is_host: bool, command: str = "toolkit-sft") -> Iterator[subprocess.Popen[bytes]]:
    """What one of two machines runs, the first of which is the host; it and its process are killed at the end."""
    told = SHOWN.replace("=8 ", "=1 ").replace("first-machine:29500", f"127.0.0.1:{port}")
    launch, _, _ = told.partition(" .venv/")
    words = [*launch.split(), f"--rdzv-conf=is_host={is_host}", str(BIN / command), str(config), "--resume"]
    with config.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(
            [str(BIN / words[0]), *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", **REJOINS},
        )
    try:
        yield process
    finally:
        lose(process)


def lose(agent: subprocess.Popen[bytes]) -> None:
    """Kill an agent and its processes at once, as a machine that loses power."""
    if agent.poll() is None:
        for each in (agent, *psutil.Process(agent.pid).children(recursive=True)):
            each.send_signal(signal.SIGKILL)
    agent.wait()


def write(folder: Path, model: Path, name: str, kind: str) -> Path:
    stages: list[dict[str, Any]] = [{"name": "one", "until_step": 20, "mix": {"a": 1}}]
    lora, parallel = {"r": 4, "dropout": 0.0}, {"kind": kind}
    precision = {"name": str(model), "dtype": "float32"}
    return write_sft(folder, model, name, model=precision, stages=stages, lora=lora, parallel=parallel)


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_a_machine_that_is_lost_and_comes_back(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    one, two = (write(tmp_path, tiny_model, name, kind) for name in ("one", "two"))
    alone("toolkit-sft", one)
    port = free_port()
    with agent(two, port, is_host=True) as first:
        with agent(two, port, is_host=False) as second:
            wait_for_step(two, 7, first)
            lose(second)
        with agent(two, port, is_host=False) as second:
            assert (first.wait(200), second.wait(60)) == (0, 0), two.with_suffix(".log").read_text()
    require_close(metrics(folder_of(one)), metrics(folder_of(two)), rel=1e-4, abs=1e-5)


def test_grpo_of_two_machines_has_one_dataserver(tmp_path: Path, tiny_model: Path) -> None:
    sections: dict[str, Any] = {**PROMPTS, "training": {**PROMPTS["training"], "max_steps": 4}}
    one = write_prompts(tmp_path / "one", tiny_model, name="one", **sections)
    alone("toolkit-rl-train", one)
    two = write_prompts(tmp_path / "two", tiny_model, name="two", **sections, parallel=FSDP)
    port, command = free_port(), "toolkit-rl-train"
    with agent(two, port, is_host=True, command=command) as first, agent(two, port, is_host=False, command=command):
        assert first.wait(100) == 1
    assert "set dataserver.url" in two.with_suffix(".log").read_text()
    with serving(two.with_name("data.yaml")) as server:
        sections["dataserver"] = {"config": None, "url": server.url}
        two = write_prompts(tmp_path / "two", tiny_model, name="two", **sections, parallel=FSDP)
        with (
            agent(two, port, is_host=True, command=command) as first,
            agent(two, port, is_host=False, command=command) as second,
        ):
            assert (first.wait(200), second.wait(60)) == (0, 0), two.with_suffix(".log").read_text()
    require_equal_runs(one, two, rel=1e-3)
    assert not list(folder_of(two).parent.glob("posttrain-weights-*"))
