"""Torch's waiting threads spin only briefly, unless the user sets otherwise."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from running import BIN


@pytest.mark.parametrize(
    ("environment", "spins"),
    [
        ({}, 10_000),
        ({"OMP_WAIT_POLICY": "active"}, 30_000_000_000),
        ({"GOMP_SPINCOUNT": "1234"}, 1234),
        ({"KMP_BLOCKTIME": "200"}, 300_000),  # for another OpenMP library; this one keeps its default
    ],
    ids=["by itself", "the user's policy", "the user's count", "the user's time"],
)
def test_torchs_threads_spin_briefly_or_as_a_user_wants_it(
    tmp_path: Path, environment: dict[str, str], spins: int
) -> None:
    """Read the settings that torch's OpenMP prints on loading, in a command that imports torch and finds no run."""
    (tmp_path / "task.yaml").write_text("run: {output_dir: runs}\n")
    named = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    clean = {name: value for name, value in os.environ.items() if name not in named}
    done = subprocess.run(
        [BIN / "toolkit-merge", tmp_path / "task.yaml"],
        capture_output=True,
        text=True,
        env={**clean, "OMP_DISPLAY_ENV": "verbose", **environment},
    )
    assert done.returncode == 2
    (count,) = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    assert int(count) == spins
