"""checks/walks.py on real runs: each walk lists the files it is known to pass through, in all processes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "checks" / "walks.py"


@pytest.mark.parametrize(
    ("name", "before", "in_a_step"),
    [
        (
            "sft",
            ["sft/data", "data/sources", "conversation/chatml"],
            ["train/loop", "sft/recipe", "train/optim/update"],
        ),
        (
            "dpo",
            ["dpo/data", "dpo/preferences"],
            ["train/loop", "dpo/recipe", "dpo/losses/logistic", "train/optim/update"],
        ),
        (
            "rl",
            [],
            [
                "train/loop",
                "rl/recipe",
                "dataserver/service",
                "dataserver/grading/worker",
                "rl/losses",
                "train/optim/update",
            ],
        ),
        ("config", ["config/load", "config/yaml_source", "sft/config"], []),
    ],
)
def test_a_walk_has_what_it_passes_in_order(name: str, before: list[str], in_a_step: list[str]) -> None:
    walk = subprocess.run([sys.executable, SCRIPT, name], capture_output=True, text=True, check=True).stdout
    prepared, _, step = walk.partition("  step: ")
    for part, wanted in ((prepared, before), (step, in_a_step)):
        files = re.findall(r"^    (\S+)\.py$", part, re.MULTILINE)
        assert [file for file in files if file in wanted] == wanted
        assert len(files) == len(set(files))
        assert not any(file.startswith(("base/", "errors")) for file in files)
    assert int(re.findall(r": (\d+) files", walk)[0]) >= len({*before, *in_a_step})
