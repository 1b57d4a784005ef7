"""The example on the page on statistics prints what the page says."""

from pathlib import Path

import pytest

from test_dataserver_docs import blocks

PAGE = (Path(__file__).parent.parent / "docs" / "statistics.md").read_text(encoding="utf-8")


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    (code,), (printed,) = blocks(PAGE, "python"), blocks(PAGE, "")
    exec(code, {})
    assert capsys.readouterr().out == printed
