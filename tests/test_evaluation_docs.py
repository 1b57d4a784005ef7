"""The configs on the page on evaluation load, and its commands run."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from forked_command import run_forked
from posttrain.config.load import load_config
from posttrain.evaluate.config import EvalConfig
from posttrain.sft.config import SFTConfig
from test_dataserver_docs import blocks

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
EVAL, TASKS, MODELS, TRAINING = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
COMMANDS = [
    line.split("#")[0].strip() for block in blocks(PAGE, "") for line in block.splitlines() if line[:8] == "toolkit-"
]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the page's first config refers to, with few rows and short answers."""
    for example, count in (("word_problems/held_out", 6), ("capitals/capitals", 4)):
        lines = (ROOT / "examples" / f"{example}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / f"{Path(example).name}.jsonl").write_text("".join(lines[:count]), encoding="utf-8")
    (tmp_path / "eval.yaml").write_text(yaml.safe_dump({**EVAL, "sampling": {"max_new_tokens": 4}}, sort_keys=False))
    training = {
        "model": {"name": str(tiny_model)},
        "datasets": {"rows": {"path": "held_out.jsonl"}},
        "stages": [{"name": "one", "until_step": 1, "mix": {"rows": 1}}],
        "training": {"rows_per_step": 4},
    }
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(training))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def succeed(*words: str) -> str:
    done = run_forked(words)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_commands_run_one_after_another_and_ask_nothing_twice(folder: Path) -> None:
    succeed("toolkit-sft", "sft.yaml")
    shutil.copytree("runs/sft", "runs/longer")
    told = [succeed(*shlex.split(command)) for command in COMMANDS]
    assert "nothing was asked" in told[0]
    titles = re.findall(r"^(\w+): \d+ prompts, baseline base", blocks(PAGE, "")[1], re.MULTILINE)
    assert titles == ["problems", "capitals", "capitals", "loss"]
    assert re.findall(r"^(\w+): \d+ prompts, baseline base", told[1], re.MULTILINE) == titles
    assert {path.name for path in (folder / "runs" / "eval").iterdir()} >= {
        "report.html",
        "comparison.md",
        "results.json",
        "tuned",
        "kept",
    }
    assert "model longer:" in told[2]
    assert told[-1].count("all answers are there") == 2


def test_the_other_sections_load(folder: Path) -> None:
    (folder / "other.yaml").write_text(yaml.safe_dump(TASKS | MODELS, sort_keys=False))
    config = load_config(folder / "other.yaml", EvalConfig)
    assert list(config.models) == ["base", "halfway", "tuned", "served"]
    assert {name: task.type for name, task in config.tasks.items()} == {"practice": "graded", "sampled": "graded"}
    (folder / "evaluated.yaml").write_text(yaml.safe_dump(yaml.safe_load(Path("sft.yaml").read_text()) | TRAINING))
    training = load_config(folder / "evaluated.yaml", SFTConfig)
    assert training.evaluation is not None and training.evaluation.patience == 3


def test_the_first_config_is_the_shipped_one() -> None:
    shipped = yaml.safe_load((ROOT / "configs" / "eval" / "word_problems.yaml").read_text(encoding="utf-8"))
    assert {name: list(section) for name, section in EVAL.items() if isinstance(section, dict)} == {
        name: list(section) for name, section in shipped.items() if isinstance(section, dict)
    }
    assert (EVAL["graders"], EVAL["sampling"]) == (shipped["graders"], shipped["sampling"])
