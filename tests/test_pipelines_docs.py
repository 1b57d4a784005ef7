"""The configs on the page on pipelines load with real steps, and its commands run."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from pipeline.pipeline_cases import write_commands, write_training
from posttrain.cli.pipeline import main
from test_dataserver_docs import blocks

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
CHAIN, ROUNDS, SWEEP = blocks(PAGE, "yaml")
COMMANDS = [
    line.split("#")[0].strip() for block in blocks(PAGE, "") for line in block.splitlines() if line[:8] == "toolkit-"
]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configs that the page's pipelines name, for a tiny model; those of training have folders of their own."""
    write_training(tmp_path, tiny_model)
    dpo = tmp_path / "dpo" / "dpo.yaml"
    dpo.write_text(dpo.read_text().replace(" a:", " own:"))
    evaluation = yaml.safe_load((tmp_path / "eval.yaml").read_text())
    evaluation["tasks"] = {"problems": evaluation["tasks"]["fruits"]}
    (tmp_path / "eval.yaml").write_text(yaml.safe_dump(evaluation))
    (tmp_path / "more.jsonl").write_text(json.dumps({"prompt": "Name a town.", "answer": "a"}) + "\n")
    evaluation["tasks"]["problems"]["path"] = "more.jsonl"
    (tmp_path / "choosing.yaml").write_text(yaml.safe_dump(evaluation))
    sampling = {
        "output": "pairs",
        "model": {"config": "sft/sft.yaml"},
        "prompts": {"path": "asked.jsonl", "gold": None, "graders": {"says_a": 1}},
        "graders": {"says_a": evaluation["graders"]["says_a"]},
        "keep": [{"type": "pairs", "path": "pairs.jsonl"}],
    }
    (tmp_path / "asked.jsonl").write_text(json.dumps({"prompt": "Name a river."}) + "\n")
    (tmp_path / "sample.yaml").write_text(yaml.safe_dump(sampling))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        (CHAIN, ["sft", "pairs", "dpo", "dpo.merged", "grpo", "scores", "choice"]),
        (ROUNDS, ["sft", "round1.sample", "round1.dpo", "round3.sample", "round3.dpo", "scores"]),
        (SWEEP, ["sft[learning_rate=3e-4,r=8,seed=1]", "sft.scores", "sft", "scores"]),
    ],
)
def test_the_configs_pass_a_dry_run(config: str, steps: list[str], folder: Path) -> None:
    (folder / "page.yaml").write_text(re.sub(r"config: (sft|dpo|grpo)\.yaml", r"config: \1/\1.yaml", config))
    run("page.yaml", "--dry-run")
    from posttrain.config.load import load_config
    from posttrain.pipeline.config import PipelineConfig
    from posttrain.pipeline.pipeline import Wanted, open_context

    planned = open_context(load_config(folder / "page.yaml", PipelineConfig), "page", Wanted()).steps
    assert set(steps) <= planned.keys()


def test_the_commands_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With programs in the place of training."""
    case = write_commands(tmp_path, ("scores", "grpo", "dpo"))
    case.config.rename(tmp_path / "pipeline.yaml")
    monkeypatch.chdir(tmp_path)
    said = [run(*shlex.split(command)[1:]) for command in COMMANDS]
    assert "nothing was run" in said[0]
    assert "grpo: kept" in said[3] and "dpo: runs: --rerun" in said[3]
    assert "dpo: skipped" in said[4]
    assert len(COMMANDS) == 6
