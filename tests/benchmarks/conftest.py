"""The benchmarks' modules."""

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`benchmark_module(name)` imports a module from the benchmarks folder."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module
