"""The configs on the page on making data load, and its commands run."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from forked_command import run_forked
from posttrain.config.load import load_config
from posttrain.sft.config import SFTConfig
from synthesis.data_cases import GRADERS, QUESTIONS, SAMPLE, require_sums, write_jsonl_file
from test_dataserver_docs import blocks

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "data-making.md").read_text(encoding="utf-8")
DATA, AGAIN = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
COMMANDS = [
    line.split("#")[0].strip() for block in blocks(PAGE, "") for line in block.splitlines() if line[:8] == "toolkit-"
]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the page's config and commands name, with few prompts and short answers of an untrained model."""
    for name in ("practice", "rows", "held_out", "one_step"):
        rows = [{"prompt": row["prompt"], "completion": "a"} for row in QUESTIONS]
        write_jsonl_file(tmp_path / f"{name}.jsonl", rows[-1:] if name == "held_out" else rows)
    served = {
        "datasets": {"practice": {"path": "practice.jsonl", "gold": None, "graders": {"says_a": 1}}},
        "graders": GRADERS,
        "stages": [{"name": "one", "until_step": 5, "mix": {"practice": 1}}],
    }
    config = {**DATA, "sample": SAMPLE, "model": {**DATA["model"], "weights": "base"}}
    for name, written in (("rl_data", served), ("data", config), ("again", AGAIN)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(written, sort_keys=False))
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump({"model": {"name": str(tiny_model)}}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_commands_run_one_after_another(folder: Path) -> None:
    told = []
    for command in COMMANDS:
        done = run_forked(shlex.split(command))
        assert done.returncode == 0, done.stderr
        told.append(done.stderr)
    assert [shlex.split(command)[1] for command in COMMANDS] == ["run", "run", "dedup", "decontaminate", "stats"]
    assert "nothing was asked" in told[0]
    ledger = json.loads((folder / "runs" / "made" / "ledger.json").read_text())
    require_sums(ledger)
    assert ledger["prompts"]["contaminated"] == 1
    assert (folder / "runs" / "made" / "pairs.control.jsonl").is_file()
    assert len((folder / "clean.jsonl").read_text().splitlines()) == len(QUESTIONS) - 1


def test_the_kept_rows_are_mixed_with_others_as_the_page_says(folder: Path) -> None:
    assert load_config(folder / "again.yaml", SFTConfig).stages[0].mix == {"first": 1, "good": 1}


def test_the_reasons_on_the_page_are_those_of_the_ledger() -> None:
    from typing import get_args

    from posttrain.synthesis.selection import Outcome, Sort

    first_cells = re.findall(r"^\| ([^|]+) \|", PAGE, re.MULTILINE)
    named = {name for cell in first_cells for name in cell.split(", ") if name.strip()}
    assert named == {*get_args(Sort), *get_args(Outcome)} - {"kept"}
