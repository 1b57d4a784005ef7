"""The fastest setting of a rival is searched for once, recorded, and then measured against."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SCRIPT = """
import json, sys, time
run = sys.argv[sys.argv.index("--run") + 1]
if "slow" in run:
    time.sleep(60)
print(json.dumps({"speed": {"X newest, 2": 1.0, "X newest, 4": 2.0, "X newest, 8": 3.5, "X pinned, 8": 4}[run]}))
"""


@pytest.fixture
def search(benchmark_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with one part whose rival has five settings, of which one takes too long and one fails."""
    module = benchmark_module("search")
    (tmp_path / "part.py").write_text(SCRIPT)
    versions, names = ("pinned", "newest"), ("2", "4", "slow", "8", "wrong")
    settings = SimpleNamespace(RIVALS=[f"X {version}, {name}" for version in versions for name in names], SPEED="speed")
    monkeypatch.setitem(sys.modules, "part", settings)
    monkeypatch.setattr(module, "PARTS", {"part": ()})
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "LONGEST", 3.0)
    monkeypatch.setattr(benchmark_module("rivals"), "FILE", tmp_path / "rivals.json")
    return module


def test_the_two_fastest_settings_run_in_both_versions_and_the_fastest_is_recorded(
    search: Any, benchmark_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["search.py"])
    monkeypatch.setenv("TRL_PYTHON", sys.executable)
    search.main()
    found = json.loads((tmp_path / "rivals.json").read_text())["part"]
    assert found["speeds"] == {"X newest, 2": 1.0, "X newest, 4": 2.0, "X newest, 8": 3.5, "X pinned, 8": 4}
    assert found["failed"] == {
        "X newest, slow": "not done after 3 s",
        "X newest, wrong": "KeyError: 'X newest, wrong'",
        "X pinned, 4": "KeyError: 'X pinned, 4'",
    }
    assert found["fastest"] == benchmark_module("rivals").fastest("part") == "X pinned, 8"
    (tmp_path / "part.py").write_text(SCRIPT.replace("3.5", "4.5").replace("1.0", "9.0"))
    monkeypatch.setattr(sys, "argv", ["search.py", "--again"])
    search.main()  # of 4 and 8 alone: the better speed counts
    found = json.loads((tmp_path / "rivals.json").read_text())["part"]
    assert found["speeds"] == {"X newest, 2": 1.0, "X newest, 4": 2.0, "X newest, 8": 4.5, "X pinned, 8": 4}
    assert found["fastest"] == "X newest, 8"
    assert set(found["versions"]) == {"torch", "trl", "transformers", "peft"}


def test_a_part_without_a_recorded_rival_says_how_to_search(search: Any, benchmark_module: Any) -> None:
    with pytest.raises(SystemExit, match=r"search.py --only part first"):
        benchmark_module("rivals").fastest("part")


def test_every_recorded_rival_is_a_run_of_its_part(benchmark_module: Any) -> None:
    recorded = benchmark_module("rivals").read()
    assert recorded.keys() <= benchmark_module("search").PARTS.keys()
    for part, found in recorded.items():
        assert found["fastest"] in benchmark_module(part).RIVALS


def test_the_newest_version_needs_an_environment_of_its_own(
    benchmark_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    measuring = benchmark_module("measuring")
    monkeypatch.delenv("TRL_PYTHON", raising=False)
    assert measuring.python_of("TRL pinned, 8 at once") == sys.executable
    with pytest.raises(SystemExit, match="TRL_PYTHON"):
        measuring.python_of("TRL newest, 8 at once")
    monkeypatch.setenv("TRL_PYTHON", "/some/python")
    assert measuring.python_of("TRL newest, 8 at once") == "/some/python"
