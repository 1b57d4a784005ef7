"""The pages that are written from the code are what the code says now."""

import runpy
from pathlib import Path

from typer.testing import CliRunner

from toolkit.cli.sft import main
from toolkit.core.config.reference import undocumented_fields
from toolkit.sft.config import SFTConfig

ROOT = Path(__file__).parent.parent
SCHEMA = ROOT / "configs" / "sft" / "schema.json"


def test_the_written_pages_are_up_to_date():
    for path, text in runpy.run_path(str(ROOT / "docs" / "render.py"))["rendered"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} is out of date: python docs/render.py"


def test_the_schema_is_what_toolkit_sft_prints():
    result = CliRunner().invoke(main, ["--schema"])
    assert result.exit_code == 0
    assert result.stdout.rstrip() == SCHEMA.read_text(encoding="utf-8").rstrip()


def test_every_key_has_a_sentence():
    assert undocumented_fields(SFTConfig) == []
