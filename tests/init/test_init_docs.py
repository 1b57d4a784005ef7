"""The commands of toolkit-init in the quickstart do what it says."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from posttrain.cli.init import main
from test_dataserver_docs import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
COMMANDS = [line for block in blocks(PAGE, "") for line in block.splitlines() if line.startswith("toolkit-init")]


def test_the_commands_write_configs(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{n} + 1?", "completion": f"{n + 1}"} for n in range(120)]
    for name in ("basics.jsonl", "sums.jsonl"):
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for command in COMMANDS:
        _, *arguments = shlex.split(command.replace("smollm2-135m-instruct", str(tiny_model)))
        model = [] if "--model" in arguments else ["--model", str(tiny_model)]
        questions = 3 if "--yes" not in arguments else 0  # task, config and passes; data and model are given
        result = CliRunner().invoke(main, [*arguments, *model], input="\n" * questions)
        assert result.exit_code == 0, result.output
    written = {path.name for path in tmp_path.glob("*.yaml")}
    of_the_pipeline = {f"better{part}.yaml" for part in ("", "_grpo", "_data", "_eval")}
    assert written == {"sft.yaml", "basics.yaml", "sums.yaml", "sums_data.yaml"} | of_the_pipeline
