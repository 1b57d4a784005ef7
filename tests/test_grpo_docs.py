"""The configs on the GRPO page load, its commands run, and its numbers match the code."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from posttrain.config.load import load_config
from posttrain.errors import ConfigError
from posttrain.rl.config import RLConfig
from posttrain.rl.objective import check_user_functions
from posttrain.rl.presets import PRESETS, resolve_objective
from posttrain.rl.schedule import RolloutSchedule
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
    """The cells of the first table after a heading, without the header row."""
    _, _, rest = PAGE.partition(f"\n## {heading}\n")
    rows = re.search(r"(?:^\|.*\n)+", rest, re.MULTILINE)
    assert rows is not None
    return [[cell.strip() for cell in row.strip("|\n").split("|")] for row in rows[0].splitlines()[2:]]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    """The page's two configs, scaled down for a test, and their data."""
    trainer, dataserver, *_ = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
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


def test_the_table_of_generations_is_what_the_schedule_says() -> None:
    rows = table("Generations and steps")
    assert len(rows) == 4
    for cells in rows:
        size, group, steps_per_generation, passes, prompts = map(int, cells[:5])
        schedule = RolloutSchedule(size, group, steps_per_generation, passes)
        assert schedule.prompts_per_iteration == prompts
        made = [int(step) for step in cells[5].rstrip(" …").split(", ")]
        assert [schedule.iteration_of(generation) for generation in range(len(made))] == made
        wanted = f"`prompts_per_iteration: {schedule.prompts_per_iteration}`"
        if schedule.iteration_stride > 1:
            wanted += f", `iteration_stride: {schedule.iteration_stride}`"
        assert cells[6] == wanted


def test_the_table_of_algorithms_is_that_of_the_presets() -> None:
    rows = {cells[0].strip("`"): cells for cells in table("Algorithms")}

    assert list(rows) == list(PRESETS)
    for name, preset in PRESETS.items():
        _, paper, *cells, _ = rows[name]
        aggregation, ratio, baseline, scale, beta, clip = (cell.strip("`") for cell in cells)
        objective = preset.objective
        assert paper == preset.paper
        assert aggregation == objective.aggregation
        assert ratio == objective.importance_sampling_level
        assert (baseline, scale) == (objective.baseline, objective.scale_rewards)
        assert float(beta) == objective.beta
        if objective.policy_loss == "cispo":
            assert clip == f"ratio up to {objective.epsilon_high:g}"
        else:
            assert [float(each) for each in clip.split(", ")] == [objective.epsilon, objective.epsilon_high]


def test_the_estimator_that_is_called_the_default_is_that_of_every_preset() -> None:
    (default,) = re.findall(r"^\| `(\w+)` \(default\) \|", PAGE, re.MULTILINE)
    assert {preset.objective.kl_estimator for preset in PRESETS.values()} == {default}


def test_the_functions_of_one_s_own_do_what_they_must(folder: Path) -> None:
    (code,) = blocks(PAGE, "python")
    config = yaml.safe_load((folder / "grpo.yaml").read_text())
    config.update(yaml.safe_load(blocks(PAGE, "yaml")[2]))
    (folder / "own.yaml").write_text(yaml.safe_dump(config))
    (folder / "objective.py").write_text(code)
    objective = resolve_objective(config["algorithm"], load_config(folder / "own.yaml", RLConfig).objective)
    check_user_functions(objective)

    (folder / "objective.py").write_text(code.replace("inputs.logprobs", "inputs.logprob", 1))
    with pytest.raises(ConfigError) as failed:
        check_user_functions(objective)
    (said,) = [block.strip() for block in blocks(PAGE, "") if block.startswith("error: ")]
    assert said.replace("/home/me", str(folder)) == f"error: {failed.value}"
