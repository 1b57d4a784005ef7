"""docs/reliability.md: each fault in its tables names an existing test."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| fault")]
NAMED = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")


def test_every_row_says_what_happens_and_names_a_test():
    assert len(ROWS) > 50
    for row in ROWS:
        fault, what_happens, shown_by = (cell.strip() for cell in row.strip("|").split(" | "))
        assert fault and what_happens, row
        assert NAMED.search(shown_by), row


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED.findall(PAGE)}))
def test_the_named_tests_are_there(file):
    source = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    functions = {node.name for node in source.body if isinstance(node, ast.FunctionDef)}
    wanted = {name for each, name in NAMED.findall(PAGE) if each == file and name}
    assert wanted <= functions
    assert any(name.startswith("test_") for name in functions)
