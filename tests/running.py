"""Run the toolkit's commands as subprocesses and read what they left."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
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
