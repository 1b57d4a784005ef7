"""Reads YAML safely into plain data, and remembers on which line each key and list item stands.

Stricter than PyYAML: no tags, no duplicate keys, only text as keys, and limits on size and depth, so that no
file can hang or fill the machine. Values are what PyYAML makes of them: `1e-5` is text, `yes` is true.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from posttrain.base.text import as_shown
from posttrain.config.keys import KeyPath, one_error
from posttrain.config.yaml_nodes import BoundedLoader, Builder, YamlRefusedError
from posttrain.config.yaml_reasons import syntax_reason
from posttrain.errors import ConfigError

MAX_BYTES = 1024 * 1024


@dataclass(frozen=True)
class YamlSource:
    """The plain data of one YAML text. `lines` has the line, from 1, of every key path; `()` is the root."""

    data: Any
    lines: dict[KeyPath, int]


def parse_yaml(text: str) -> YamlSource:
    """Parse one YAML document; an empty one gives None. Raises `YamlRefusedError`."""
    loader = None
    try:
        loader = BoundedLoader(text)
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        raise YamlRefusedError([syntax_reason(error, text)]) from None
    except (ValueError, OverflowError):  # chr() of an escape such as "\UFFFFFFFF"
        line = loader.line + 1 if loader else 1
        raise YamlRefusedError([(line, "an escape that stands for no character")]) from None
    if node is None:
        return YamlSource(None, {})
    builder = Builder()
    data = builder.build(node, (), 0)
    if builder.problems:
        raise YamlRefusedError(sorted(builder.problems.values()))
    return YamlSource(data, builder.lines)


def read_yaml(path: Path) -> YamlSource:
    """Parse a config file, whose root must be a mapping. Raises `ConfigError` with every problem found."""
    text = _read_text(path)
    name = as_shown(path)
    try:
        source = parse_yaml(text)
    except YamlRefusedError as error:
        raise one_error(path, [f"{name}:{line}: {reason}" for line, reason in error.problems]) from None
    if source.data is None:
        raise ConfigError(f"{name}: the file is empty; a config is a list of `key: value` lines")
    if not isinstance(source.data, dict):
        found = "a list" if isinstance(source.data, list) else "one value"
        raise ConfigError(f"{name}:{source.lines[()]}: the file holds {found}; a config is `key: value` lines")
    return source


def _read_text(path: Path) -> str:
    name = as_shown(path)
    try:
        data = _first_bytes(path)
    except FileNotFoundError:
        start = "" if path.is_absolute() else f", which starts from {os.getcwd()}"
        raise ConfigError(f"{name}: there is no such file; check the path{start}") from None
    except IsADirectoryError:
        raise ConfigError(f"{name}: this is a folder; give the YAML file in it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
    if data is None:
        raise ConfigError(f"{name}: this is a pipe or a device, not a file; write the config to a file first")
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than {MAX_BYTES // 1024} KiB; is this a config file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: not UTF-8 text; save the file as UTF-8") from None


def _first_bytes(path: Path) -> bytes | None:
    """The file's content, of which a byte more than is allowed will do; None where it is a pipe or a device."""
    # Opening a pipe waits for its other end, which may never come. A folder is left to `open`, which says what it is.
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return None
    with open(path, "rb") as file:
        return file.read(MAX_BYTES + 1)
