"""The pages that are written from the code are what the code says now."""

import runpy
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from posttrain.cli import rl_dataserver, sft
from posttrain.config.reference import undocumented_fields
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.sft.config import SFTConfig

ROOT = Path(__file__).parent.parent


def test_the_written_pages_are_up_to_date():
    for path, text in runpy.run_path(str(ROOT / "docs" / "render.py"))["rendered"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is out of date: python docs/render.py"


@pytest.mark.parametrize(("command", "kind"), [(sft.main, "sft"), (rl_dataserver.main, "dataserver")])
def test_the_schema_is_what_the_command_prints(command: Typer, kind: str):
    result = CliRunner().invoke(command, ["--schema"])
    assert result.exit_code == 0
    schema = ROOT / "configs" / kind / "schema.json"
    assert result.stdout.rstrip() == schema.read_text(encoding="utf-8").rstrip()


def test_every_key_has_a_sentence():
    assert undocumented_fields(SFTConfig) == []
    # The type of a grader is the heading of its section.
    assert [field for field in undocumented_fields(DataserverConfig) if not field.endswith(".type")] == []
