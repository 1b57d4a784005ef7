"""docs/chat-and-serve.md: its script is talked, its client is answered, and its tables are whole."""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from posttrain.chat.commands import COMMANDS
from posttrain.cli.chat import main as chat
from posttrain.cli.serve import main as serve
from posttrain.serve.config import ServeLimits
from test_dataserver_docs import blocks

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "chat-and-serve.md").read_text(encoding="utf-8")
SCRIPT, TALKED, *_ = blocks(PAGE, "text")


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's config with a tiny model, whose answers are whole because they stop at letters."""
    monkeypatch.chdir(tmp_path)
    sections = yaml.safe_load(blocks(PAGE, "yaml")[0])
    sections["model"] = {"name": str(tiny_model), "backend": "hf", "dtype": "float32"}
    sections["generation"].update(stop=["e", "a"], max_new_tokens=150, temperature=1.0, seed=2)
    (tmp_path / "chat.yaml").write_text(yaml.safe_dump(sections))
    return tmp_path / "chat.yaml"


def test_the_config_is_one():
    from posttrain.inference.config import InferenceConfig

    assert InferenceConfig.model_validate(yaml.safe_load(blocks(PAGE, "yaml")[0])).generation.max_new_tokens == 60


def test_the_script_is_talked_and_saved(config: Path):
    (command,) = re.findall(r"`toolkit-chat (.*?) < script.txt`", PAGE)
    result = CliRunner().invoke(chat, shlex.split(command), input=SCRIPT)
    assert result.exit_code == 0, result.output
    assert [line for line in result.stdout.splitlines() if line.startswith("[2]")] == ["[2] chat base"]
    assert all(Path(name).is_file() for name in ("said.jsonl", "better.jsonl"))
    assert TALKED.count("\n") == 4


def test_the_first_command_of_each_is_accepted(config: Path):
    lines = [line for block in blocks(PAGE, "") for line in block.splitlines()]
    assert [line.split()[0] for line in lines] == ["toolkit-chat", "toolkit-serve"]
    for line, command in zip(lines, (chat, serve), strict=True):
        result = CliRunner().invoke(command, [*shlex.split(line)[1:], "--dry-run"])
        assert result.exit_code == 0, result.output


def test_the_client_of_the_page_is_answered(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.syspath_prepend(ROOT / "tests" / "serve")
    serve_cases: Any = __import__("serve_cases")
    (code,) = blocks(PAGE, "python")
    with serve_cases.serving(config) as server:
        exec(code.replace("http://127.0.0.1:8000", server.url), {})
    assert capsys.readouterr().out.endswith("\n")
    assert "serve_cases" in sys.modules


def test_the_tables_have_every_command_and_every_limit():
    commands = set(re.findall(r"^\| `/(\w+)", PAGE, re.MULTILINE))
    assert commands == {*COMMANDS}
    assert "`/help`, `/quit`" in PAGE
    limits = re.findall(r"^\| `(\w+)` \| ([\d,]+)", PAGE, re.MULTILINE)
    assert {name: float(value) for name, value in limits} == ServeLimits().model_dump()
