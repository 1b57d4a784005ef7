"""Writes a config as YAML that loads back to an equal config."""

import os
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import yaml
from pydantic import BaseModel


def to_yaml(config: BaseModel) -> str:
    """All fields, defaults too, in the order of the classes; paths absolute, so that any folder will do."""
    data = _plain(config.model_dump(by_alias=True))
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)


def _plain(value: Any) -> Any:
    """Only what YAML knows. Everything is copied, so that nothing is written as an anchor and an alias."""
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, PurePath):
        return os.path.abspath(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    return str(value) if isinstance(value, str) else value
