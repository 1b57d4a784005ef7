"""Small data sets, and the configs that serve them."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import FileDataset
from posttrain.dataserver.data.dataset_rows import FileRows
from posttrain.dataserver.data.loading import load_rows

Section = Mapping[str, Any]

GRADED: Section = {"graders": {"string_exact": 1}}
"""What every data set needs besides its rows."""


def questions(name: str, count: int) -> list[dict[str, Any]]:
    """Rows 0 … count − 1: the prompt is the data set's name and the row number, which is also the answer."""
    return [{"prompt": f"{name} {number}", "answer": str(number)} for number in range(count)]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def make_config(root: Path, datasets: Mapping[str, Section], **keys: Any) -> DataserverConfig:
    """A config of `<name>.jsonl` data sets graded by `string_exact` and mixed in one stage, unless overridden."""
    files = {name: {} if "type" in section else {"path": f"{name}.jsonl"} for name, section in datasets.items()}
    sections = {name: {**files[name], **GRADED, **section} for name, section in datasets.items()}
    stages = [{"name": "all", "until_step": 10, "mix": dict.fromkeys(datasets, 1)}]
    data = {"data_root": root, "datasets": sections, "stages": stages, **keys}
    return DataserverConfig.model_validate(data, context={"base_dir": root})


def load(path: Path, on_bad_record: str = "error", report: Callable[[str], None] = print, **section: Any) -> FileRows:
    """The rows of one file, with its folder as the data root."""
    dataset = FileDataset.model_validate({"path": path.name, **GRADED, **section})
    return load_rows(dataset, path.parent, on_bad_record, report)  # type: ignore[arg-type]
