"""tests/suite.py: shares that contain each long test once, the time limit, the budget and markers."""

import ast
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from suite import budget_lines, files_of_share, package_of, times

pytest_plugins = ["pytester"]

TESTS = Path(__file__).parents[1]
Suite = Callable[..., pytest.RunResult]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """`suite(*options)` runs the tests in pytester's folder with the suite plugin."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # other plugins take seconds to load
    return partial(pytester.runpytest_subprocess, "-p", "suite")


def test_shares_have_each_file_once_and_take_about_as_long_as_each_other():
    seconds = times()["long"]
    files = {*seconds, "base/test_new.py"}
    for count in (1, 2, 4, 7):
        shares = [files_of_share(f"{number}/{count}", files) for number in range(1, count + 1)]
        assert sorted(file for share in shares for file in share) == sorted(files)
        totals = [sum(seconds.get(file, 0) for file in share) for share in shares]
        # No share is longer than the shortest by more than one file.
        assert max(totals) - min(totals) <= max(seconds.values())


@pytest.mark.parametrize("share", ["0/4", "5/4", "1", "a/b", "-1/4"])
def test_a_share_that_there_is_not_is_refused(share: str):
    with pytest.raises(pytest.UsageError, match=f"--share {share}: wants K/N"):
        files_of_share(share, {"a.py"})


def test_a_package_over_its_budget_has_a_warning():
    assert package_of("tests/rl/client/test_x.py::test_y[a/b]") == "rl"
    assert package_of("tests/test_docs.py::test_y") == "tests"
    lines = budget_lines({"rl": 12.4, "sft": 3.0, "new": 1.0}, {"rl": 12, "sft": 4, "dpo": 5})
    assert [line.split()[:3] for line in lines] == [
        ["rl", "12", "12"],
        ["sft", "3", "4"],
        ["new", "1", "0"],
        ["dpo", "0", "5"],
        ["all", "16", "21"],
    ]
    assert [line.split()[0] for line in lines if "WARNING" in line] == ["rl", "new"]


def test_what_the_table_names_is_there():
    for place in [*times()["slow"]["tests"], *times()["long"]]:
        file, _, function = place.partition("::")
        assert (TESTS / file).exists(), place
        if function:
            names = {node.name for node in ast.walk(ast.parse((TESTS / file).read_text())) if hasattr(node, "name")}
            assert function in names, place
    packages = {folder.name for folder in TESTS.iterdir() if any(folder.glob("**/test_*.py"))}
    assert packages - {"gpu"} == times()["budget"].keys() - {"tests"}


def test_no_test_is_begun_when_the_time_is_over(pytester: pytest.Pytester, suite: Suite):
    pytester.makepyfile("""
        import time
        def test_first(): time.sleep(0.2)
        def test_second(): raise AssertionError
    """)
    finished = suite("--seconds", "0.1")
    finished.stdout.fnmatch_lines(["1 tests were not begun within 0.1 seconds"])
    finished.assert_outcomes(passed=1)


def test_markers_come_from_fixtures_and_parameters(pytester: pytest.Pytester, suite: Suite):
    pytester.makepyfile(
        **{
            "test_ranks_and_vllm": "def test_one(): pass",
            "test_rest": """
            import pytest
            @pytest.fixture
            def postgres(): pass
            @pytest.fixture(params=["sqlite", "postgresql"])
            def journal(request): pass
            def test_two(postgres): pass
            def test_three(journal): pass
            @pytest.mark.parametrize("number", [1])
            def test_four(number): pass
        """,
        }
    )
    for marker, wanted in (("postgres", 2), ("ranks", 1), ("vllm", 1), ("not postgres and not ranks", 2)):
        suite("-m", marker).assert_outcomes(passed=wanted, deselected=5 - wanted)
