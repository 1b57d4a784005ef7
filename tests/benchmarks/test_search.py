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
print(json.dumps({"speed": {"pinned, 4": 2.0, "pinned, 8": 3.5}[run]}))
"""


@pytest.fixture
def search(benchmark_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with one part whose rival has four settings, of which one takes too long and one fails."""
    module = benchmark_module("search")
    (tmp_path / "part.py").write_text(SCRIPT)
    settings = SimpleNamespace(RIVALS=("pinned, 4", "pinned, slow", "pinned, 8", "pinned, wrong"), SPEED="speed")
    monkeypatch.setitem(sys.modules, "part", settings)
    monkeypatch.setattr(module, "PARTS", {"part": ()})
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "LONGEST", 3.0)
    monkeypatch.setattr(benchmark_module("rivals"), "FILE", tmp_path / "rivals.json")
    return module


def test_the_fastest_of_all_settings_is_recorded_and_why_others_have_no_speed(
    search: Any, benchmark_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["search.py"])
    monkeypatch.setenv("TRL_PYTHON", sys.executable)
    search.main()
    found = json.loads((tmp_path / "rivals.json").read_text())["part"]
    assert found["speeds"] == {"pinned, 4": 2.0, "pinned, 8": 3.5}
    assert found["failed"] == {"pinned, slow": "not done after 3 s", "pinned, wrong": "KeyError: 'pinned, wrong'"}
    assert found["fastest"] == benchmark_module("rivals").fastest("part") == "pinned, 8"
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
