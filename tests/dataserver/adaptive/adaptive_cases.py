"""Small data sets and the adaptive configs that use them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dataserver.dataserver_cases import make_config, questions, write_rows
from posttrain.dataserver.adaptive.planner import RowPlace
from posttrain.dataserver.journal.plans import RowKey, RowStatistics
from posttrain.dataserver.runtime import Loaded

SLOTS = 8


def adaptive_config(
    root: Path,
    adaptive: Mapping[str, Any] | None,
    sizes: Mapping[str, int] | None = None,
    easy: Mapping[str, Any] | None = None,
    **keys: Any,
) -> Loaded:
    """Data sets `hard` and `more`, mixed three to one by the curriculum, and `easy`, which no stage names.

    Args:
        sizes: the number of rows of each data set.
        easy: keys for the section of `easy`.
    """
    sizes = sizes or {"hard": 30, "more": 12, "easy": 10}
    for name, size in sizes.items():
        write_rows(root / f"{name}.jsonl", questions(name, size))
    mix = {"hard": 3, "more": 1}
    named = {*mix, (adaptive or {}).get("easy", {}).get("dataset")}
    settings = {
        "stages": [{"name": "all", "until_step": 100, "mix": mix}],
        "prompts_per_iteration": SLOTS,
        "adaptive": adaptive,
        "journal": {"path": str(root / "journal.sqlite")},
    }
    sections = {name: (easy or {}) if name == "easy" else {} for name in sizes if name in named}
    return Loaded.read(make_config(root, sections, **{**settings, **keys}), print)


def statistics(loaded: Loaded, rows: Mapping[RowPlace, tuple[float, int]]) -> dict[RowKey, RowStatistics]:
    """Row statistics, from the mean reward and number of grades by data set and row number."""
    return {
        (dataset, loaded.datasets[dataset].key(number)): RowStatistics(count, mean)
        for (dataset, number), (mean, count) in rows.items()
    }


def all_rows(loaded: Loaded, dataset: str) -> Iterable[RowPlace]:
    """Every row of a data set."""
    return ((dataset, number) for number in range(len(loaded.datasets[dataset])))
