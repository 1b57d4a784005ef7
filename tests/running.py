"""Run the toolkit's commands as subprocesses and read what they left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from posttrain.runs.metrics import TIMING_KEYS

BIN = Path(sys.executable).parent


def metrics(run: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without timings, which differ between runs."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMING_KEYS} for row in rows]


def kill_after(lines: int, config: Path, run: Path, command: Sequence[str | Path] = (BIN / "toolkit-sft",)) -> None:
    """Start a command with a config and SIGKILL it once metrics.jsonl has `lines` lines."""
    process = subprocess.Popen(
        [*command, config], stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    try:
        while process.poll() is None:
            if (run / "metrics.jsonl").is_file() and len(metrics(run)) >= lines:
                break
            time.sleep(0.01)
        assert process.poll() is None, "the run ended before it could be killed"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def require_equal_after_a_kill(
    toolkit: Callable[..., object], left_alone: Path, killed: Path, runs: Path, files: Sequence[str]
) -> None:
    """Run one SFT config as it is, kill and resume the other: their metrics and files must be equal, bit for bit."""
    toolkit("toolkit-sft", left_alone)
    kill_after(4, killed, runs / "killed")
    assert not (runs / "killed" / "result.json").exists()
    toolkit("toolkit-sft", killed, "--resume")

    assert metrics(runs / "killed") == metrics(runs / "left_alone")
    for file in files:
        assert (runs / "killed" / file).read_bytes() == (runs / "left_alone" / file).read_bytes()
