"""A pytest plugin for the whole suite: markers by what tests use, shares, a time limit and a time budget.

The numbers are in tests/times.toml.
"""

import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@cache
def times() -> dict[str, Any]:
    """The contents of tests/times.toml."""
    return tomllib.loads((HERE / "times.toml").read_text(encoding="utf-8"))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("suite")
    group.addoption("--share", metavar="K/N", help="of the files with long tests those of one share")
    group.addoption("--seconds", type=float, metavar="S", help="begin no further test after that time")
    group.addoption("--budget", action="store_true", help="show the seconds that each package's tests took")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add markers before `-m` selects, and deselect tests in other shares."""
    for item in items:
        for marker in markers_of(item):
            item.add_marker(marker)
    if share := config.getoption("share"):
        own = files_of_share(share, {where(item)[0] for item in items if item.get_closest_marker("long")})
        others = [item for item in items if where(item)[0] not in own]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if where(item)[0] in own]


def where(item: pytest.Item) -> tuple[str, str]:
    """The test's file relative to tests/, and the same with its function."""
    file = item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else item.path.name
    return file, f"{file}::{getattr(item, 'originalname', item.name)}"


def markers_of(item: pytest.Item) -> Iterator[str]:
    """Markers derived from the test's file name, fixtures and parameters."""
    file, function = where(item)
    words = Path(file).stem.split("_")
    fixtures = getattr(item, "fixturenames", ())
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    if "postgres" in fixtures or "postgresql" in [each for each in parameters if isinstance(each, str)]:
        yield "postgres"
    if "browser" in fixtures:
        yield "browser"
    if "ranks" in (*words, file.split("/")[0]):
        yield "ranks"
    yield from {"vllm", "sglang", "unsloth"}.intersection(words)
    slow = times()["slow"]
    places = {function, file, *(folder.as_posix() for folder in Path(file).parents)}
    if places.intersection(slow["tests"]) or set(fixtures).intersection(slow["fixtures"]):
        yield "slow"


def files_of_share(share: str, files: set[str]) -> set[str]:
    """The K-th of N shares, which together contain each file once and take about equally long.

    Files are assigned from longest to shortest, each to the share with the least time so far.
    """
    try:
        number, count = (int(word) for word in share.split("/"))
    except ValueError:
        number, count = 0, 0
    if not 1 <= number <= count:
        raise pytest.UsageError(f"--share {share}: wants K/N with K from 1 to N, such as 1/4")
    seconds: Mapping[str, int] = times()["long"]
    usual = sorted(seconds.values())[len(seconds) // 2]
    totals, chosen = [0] * count, set()
    for file in sorted(files, key=lambda file: (-seconds.get(file, usual), file)):
        least = totals.index(min(totals))
        totals[least] += seconds.get(file, usual)
        if least == number - 1:
            chosen.add(file)
    return chosen


class TimeLimit:
    """Skips the tests that have not started after --seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self._left = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Called for each test; any result but None tells pytest that the test was run."""
        if time.monotonic() - self._began < self._seconds:
            return None
        self._left += 1
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Report how many tests were not run."""
        if self._left:
            terminalreporter.write_line(f"{self._left} tests were not begun within {self._seconds:g} seconds")


def pytest_configure(config: pytest.Config) -> None:
    if (seconds := config.getoption("seconds")) is not None:
        config.pluginmanager.register(TimeLimit(seconds))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("budget"):
        used: Counter[str] = Counter()
        for report in (each for reports in terminalreporter.stats.values() for each in reports):
            if isinstance(report, pytest.TestReport):
                used[package_of(report.nodeid)] += report.duration
        terminalreporter.section("seconds of tests by package, and their budget")
        for line in budget_lines(used, times()["budget"]):
            terminalreporter.write_line(line)


def package_of(nodeid: str) -> str:
    """The folder of tests/ that a test is in, or `tests` if it is directly in tests/."""
    parts = nodeid.split("::")[0].split("/")
    return parts[1] if len(parts) > 2 else "tests"


def budget_lines(used: Mapping[str, float], budget: Mapping[str, int]) -> Sequence[str]:
    """A line per package, with a warning if it is over its budget, and a line for the total."""
    lines = []
    for name in sorted(used.keys() | budget.keys(), key=lambda name: -used.get(name, 0)):
        seconds, most = used.get(name, 0), budget.get(name, 0)
        lines.append(f"{name:<14}{seconds:>7.0f}{most:>7}{'  WARNING: over its budget' if seconds > most else ''}")
    return [*lines, f"{'all':<14}{sum(used.values()):>7.0f}{sum(budget.values()):>7}"]
