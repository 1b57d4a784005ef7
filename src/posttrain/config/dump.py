"""Write a config as YAML that loads back equal, with the place from which each value came."""

from collections.abc import Collection, Mapping
from datetime import date
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from posttrain.config.keys import KeyPath
from posttrain.config.strict import StrictModel
from posttrain.config.yaml_source import parse_yaml

_AS_THEY_ARE = (bool, int, float, date, type(None))


def to_yaml(config: BaseModel) -> str:
    """The config as YAML: all fields and defaults in class order, and absolute paths, so that any folder will do.

    A comment says where a value was set, such as `# base.yaml:12`; defaults have none.
    """
    data = _plain(config.model_dump(by_alias=True))
    text = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=110)
    return _with_comments(text, config.origins) if isinstance(config, StrictModel) and config.origins else text


def _with_comments(text: str, origins: Mapping[KeyPath, str]) -> str:
    """The YAML with the origin of each value behind it, or above a value of several lines."""
    lines = parse_yaml(text).lines
    rows = text.split("\n")
    starts = {*lines.values(), len(rows)}
    whole = _without_children(origins)  # what was set there has no places of its own inside
    for path in _without_children(lines):
        given = path if path in origins else next((up for n in range(len(path)) if (up := path[:n]) in whole), None)
        if given is None:
            continue
        line = lines[path]
        row = rows[line - 1]
        if line + 1 in starts:
            rows[line - 1] = f"{row}  # {origins[given]}"
        else:
            indent = row[: len(row) - len(row.lstrip())]
            rows[line - 1] = f"{indent}# {origins[given]}\n{row}"
    return "\n".join(rows)


def _without_children(paths: Collection[KeyPath]) -> set[KeyPath]:
    """The paths that no other path goes on from."""
    return set(paths) - {path[:-1] for path in paths if path}


class _Dumper(yaml.SafeDumper):
    """Escapes unusual line breaks such as U+0085, which PyYAML would write unescaped and read as line feeds."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        odd = not data.replace("\n", "").isprintable()
        return self.represent_scalar("tag:yaml.org,2002:str", data, style='"' if odd else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def _plain(value: Any) -> Any:
    """The value in YAML's own types, copied throughout, so that PyYAML writes no anchors and aliases."""
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}  # keys in a file are always text
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, PurePath):
        return str(Path(value).absolute())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, str):
        return str(value)  # not a subclass of str
    return value if isinstance(value, _AS_THEY_ARE) else to_jsonable_python(value)
