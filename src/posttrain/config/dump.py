"""Write a config as YAML that loads back to an equal config."""

from collections.abc import Mapping
from datetime import date
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

_AS_THEY_ARE = (bool, int, float, date, type(None))


def to_yaml(config: BaseModel) -> str:
    """All fields, defaults too, in the order of the classes; paths absolute, so that any folder will do."""
    data = _plain(config.model_dump(by_alias=True))
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)


class _Dumper(yaml.SafeDumper):
    """Escapes odd line ends such as U+0085, which PyYAML would write as they are and read as line feeds."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        odd = not data.replace("\n", "").isprintable()
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if odd else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def _plain(value: Any) -> Any:
    """Only what YAML knows. Everything is copied, so that nothing is written as an anchor and an alias."""
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}  # as keys, files have text alone
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, PurePath):
        return str(Path(value).absolute())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, str):
        return str(value)  # not a subclass of it
    return value if isinstance(value, _AS_THEY_ARE) else to_jsonable_python(value)
