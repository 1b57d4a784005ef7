"""The benchmarks' modules."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
BENCHMARKS = TESTS.parent / "benchmarks"


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`benchmark_module(name)` imports a module from the benchmarks folder.

    A folder of tests may have the same name; the test has the module in its place.
    """
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def load(name: str) -> Any:
        found = getattr(sys.modules.get(name), "__file__", None)
        if (TESTS / name).is_dir() and found != str(BENCHMARKS / f"{name}.py"):
            monkeypatch.setitem(sys.modules, name, None)  # put back after the test
            del sys.modules[name]
        return importlib.import_module(name)

    return load
