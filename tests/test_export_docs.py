"""docs/export.md: its limits are those of the code, its options are there, and its output is what is printed."""

import re
from pathlib import Path

from typer.testing import CliRunner

from posttrain.cli.export import main
from posttrain.export.gguf_types import BY_CONVERTER, LIMITS

PAGE = (Path(__file__).parent.parent / "docs" / "export.md").read_text(encoding="utf-8")


def test_the_table_has_the_limits_of_every_type() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \d+ MiB \| (.*?) \| ([\d.]+) \| (\d+) % \|$", PAGE, re.MULTILINE)
    assert [name for name, *_ in rows] == list(LIMITS)
    for name, writer, kl, agreement in rows:
        assert (writer == "converter") == (name in BY_CONVERTER)
        limits = LIMITS[name]
        assert (float(kl), float(agreement) / 100) == (limits.kl, limits.agreement)


def test_the_options_that_the_page_names_are_there() -> None:
    shown = CliRunner().invoke(main, ["--help"], env={"COLUMNS": "200", "TERM": "dumb"}).output
    of_pip = {"--require-hashes", "--no-deps"}
    of_the_server = {"--flash-attn"}
    for option in set(re.findall(r"--[a-z][a-z-]+", PAGE)) - of_pip - of_the_server:
        assert option in shown, option
