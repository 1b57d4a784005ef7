"""The page on GRPO shows configs that load, commands that run, and numbers that the code has."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from posttrain.rl.clock import Clock
from posttrain.rl.presets import PRESETS
from running import BIN
from test_dataserver_docs import blocks

PAGE = (Path(__file__).parent.parent / "docs" / "grpo.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for block in blocks(PAGE, "")
    for line in block.splitlines()
    if line.startswith("toolkit-")
]


def table(heading: str) -> list[list[str]]:
    """The cells of the first table after a heading, without its head."""
    _, _, rest = PAGE.partition(f"\n## {heading}\n")
    rows = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert rows is not None
    return [[cell.strip() for cell in row.strip("|\n").split("|")] for row in rows[0].splitlines()[2:]]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    """The page's two configs, with a model and numbers that a test has time for."""
    trainer, dataserver = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
    trainer["model"] = {"name": str(tiny_model)}
    trainer["rollout"]["max_new_tokens"] = 8
    trainer["evaluation"]["max_new_tokens"] = 8
    trainer["training"]["max_steps"] = 1
    (tmp_path / "grpo.yaml").write_text(yaml.safe_dump(trainer))
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(dataserver))
    rows = [{"prompt": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(60)]
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_the_commands_run_one_after_another(folder: Path) -> None:
    assert [shlex.split(command)[0] for command in COMMANDS] == [
        "toolkit-rl-train",
        "toolkit-rl-debug",
        "toolkit-rl-train",
        "toolkit-rl-train",
        "toolkit-merge",
    ]
    for command in COMMANDS:
        words = shlex.split(command)
        done = subprocess.run([BIN / words[0], *words[1:]], cwd=folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_table_of_the_clock_is_what_the_clock_says() -> None:
    for cells in table("The clock"):
        p, w, g, ga, spg, mu, prompts, served = map(int, cells[:8])
        clock = Clock(p, w, g, ga, spg, mu)
        assert (clock.prompts_per_generation, clock.micro_steps_per_generation) == (prompts, served)
        steps = [int(step) for step in cells[8].rstrip(" …").split(", ")]
        assert [clock.iteration_of(generation) for generation in range(len(steps))] == steps
        wanted = f"`prompts_per_iteration: {clock.prompts_per_iteration}`"
        if clock.iteration_stride > 1:
            wanted += f", `iteration_stride: {clock.iteration_stride}`"
        assert cells[9] == wanted


def test_the_table_of_algorithms_is_that_of_the_presets() -> None:
    rows = {cells[0].strip("`"): cells for cells in table("Algorithms")}

    assert list(rows) == list(PRESETS)
    for name, preset in PRESETS.items():
        _, paper, _, ratio, scale, beta, clip, _ = rows[name]
        objective = preset.objective
        assert paper == preset.paper
        assert ratio == {"token": "token", "sequence": "completion"}[objective.importance_sampling_level]
        assert scale == objective.scale_rewards
        assert float(beta) == objective.beta
        if name == "cispo":
            assert clip == f"ratio up to {objective.epsilon_high:g}"
        else:
            assert [float(each) for each in clip.split(", ")] == [objective.epsilon, objective.epsilon_high]
