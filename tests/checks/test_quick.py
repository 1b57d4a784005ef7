"""checks/quick.py: the tests it selects for a change, and their order."""

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "checks" / "quick.py"))


def chosen(quick: dict[str, Any], *changed: str) -> list[str]:
    return [str(path) for path in dict.fromkeys(quick["tests_of"]([Path(name) for name in changed]))]


def test_tests_that_import_what_changed_come_before_the_rest_of_their_package(quick: dict[str, Any]):
    order = chosen(quick, "src/posttrain/data/curriculum/permutation.py")
    first = [name for name in order if "curriculum.permutation import" in (ROOT / name).read_text()]
    assert first and order[: len(first)] == first
    assert order[len(first)].startswith("tests/data/curriculum/")
    assert not any(name.startswith("tests/dataserver/journal/") for name in order)


def test_changed_tests_come_first_and_helpers_bring_the_tests_that_import_them(quick: dict[str, Any]):
    assert chosen(quick, "tests/rl/test_losses.py")[0] == "tests/rl/test_losses.py"
    with_helper = chosen(quick, "tests/dataserver/postgres.py")
    assert "tests/dataserver/test_replicas.py" in with_helper


def test_where_nothing_changed_there_are_a_few_of_each_package(quick: dict[str, Any]):
    order = chosen(quick)
    for few in quick["A_FEW"]:
        assert any(Path(name).is_relative_to(Path("tests", few)) for name in order), few
    assert all((ROOT / name).is_file() for name in order)
