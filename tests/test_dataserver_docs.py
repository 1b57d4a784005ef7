"""The configs in the dataserver docs load, and the commands run."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig
from running import BIN

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "dataserver.md").read_text(encoding="utf-8")
OWN_GRADER = (ROOT / "docs" / "writing-graders.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks in one language; commands have no language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [text for name, text in fenced if name == language]


# In the order of the pages. The server runs until stopped, so other tests cover it.
COMMANDS = [
    line.split("#")[0].strip()
    for block in blocks(PAGE, "") + blocks(OWN_GRADER, "")
    for line in block.splitlines()
    if line.startswith("toolkit-")
]
SERVING = "toolkit-rl-dataserver data.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the page's config and commands refer to."""
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"} for n in range(200)]
    (data / "gsm8k_train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("data.yaml", "stricter.yaml"):
        (tmp_path / name).write_text(blocks(PAGE, "yaml")[0], encoding="utf-8")
    completion = "<think>Both are 2.</think>\n2 + 2 = 4\n#### 4"
    answer = {"question": "What is 2 + 2?", "completion": completion, "completion_tokens": 12}
    (tmp_path / "answers.jsonl").write_text(json.dumps(answer) + "\n")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def test_the_page_has_commands():
    assert SERVING in COMMANDS
    assert {shlex.split(command)[0] for command in COMMANDS} == {
        "toolkit-rl-dataserver",
        "toolkit-rl-grade",
        "toolkit-rl-regrade",
    }


def test_the_commands_run_one_after_another(folder: Path):
    for command in COMMANDS:
        if command != SERVING and command != "toolkit-rl-regrade data.yaml":  # needs a server's journal
            words = shlex.split(command)
            done = subprocess.run([BIN / words[0], *words[1:]], cwd=folder, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, f"{command}: {done.stderr}"
    assert [json.loads(line)["reward"] for line in (folder / "graded.jsonl").open()] == [1.0]


def test_the_config_of_several_tasks_loads(folder: Path):
    (folder / "tasks.yaml").write_text(blocks(PAGE, "yaml")[2], encoding="utf-8")
    assert load_config(folder / "tasks.yaml", DataserverConfig).datasets["mixed"].grading_by_task.keys() == {
        "arithmetic",
        "crossword",
    }


def test_the_adaptive_section_of_the_page_loads(folder: Path):
    config = folder / "data.yaml"
    warm_up = "  warm_up: {path: gsm8k_train.jsonl, columns: {prompt: question}, graders: {number_exact: 1}}\n"
    text = config.read_text(encoding="utf-8").replace("datasets:\n", f"datasets:\n{warm_up}")
    config.write_text(text + blocks(PAGE, "yaml")[1], encoding="utf-8")

    loaded = load_config(config, DataserverConfig)

    assert loaded.adaptive is not None
    assert loaded.adaptive.easy is not None and loaded.adaptive.easy.dataset == "warm_up"


def test_the_code_on_the_page_on_graders_is_that_of_the_example():
    code = blocks(OWN_GRADER, "python")[0]
    example = (ROOT / "examples" / "own_grader" / "graders.py").read_text(encoding="utf-8")
    assert code[code.index("def ") :] in example
