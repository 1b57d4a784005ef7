"""Tell what a config file is for, from its keys, without checking it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from posttrain.base.text import as_url
from posttrain.config.load import read_raw
from posttrain.config.strict import folder_of
from posttrain.data.readers.open import open_lines
from posttrain.errors import ToolkitError

Kind = Literal["sft", "dpo", "rl", "dataserver"]
"""The command that takes it: toolkit-sft, toolkit-dpo, toolkit-rl-train or toolkit-rl-dataserver."""

_SERVES = {"prompts_per_iteration", "iteration_stride", "graders"}
_PREFERS = {"method", "reference", "on_useless_pair", "max_dropped_share", "models"}
_OF_PAIRS = {"type", "n_samples", "accepted", "rejected"}
_PAIR_COLUMNS = {"chosen", "rejected", "label"}


def config_kind(path: Path) -> Kind:
    """The kind of a config file.

    Configs of toolkit-sft and toolkit-dpo may have the same keys; then the columns of the first row tell them apart.

    Raises:
        ConfigError: the file cannot be read.
    """
    raw = read_raw(path)
    if "dataserver" in raw:
        return "rl"
    if _SERVES & raw.keys():
        return "dataserver"
    return "dpo" if _PREFERS & raw.keys() or any(_is_of_pairs(each, path) for each in _sections(raw)) else "sft"


def _sections(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    datasets = raw.get("datasets")
    return [each for each in datasets.values() if isinstance(each, dict)] if isinstance(datasets, dict) else []


def _is_of_pairs(section: Mapping[str, Any], config: Path) -> bool:
    columns = section.get("columns")
    if _OF_PAIRS & section.keys() or (isinstance(columns, dict) and _PAIR_COLUMNS & columns.keys()):
        return True
    if not isinstance(source := section.get("path"), str) or isinstance(columns, dict):
        return False
    try:
        path = as_url(source) or folder_of(source, config.absolute().parent) / source
        line = next(iter(open_lines(path, None).lines()), None)
    except ToolkitError:
        return False  # whoever reads the data says what is wrong with it
    return line is not None and line.value is not None and {"chosen", "rejected"} <= line.value.keys()
