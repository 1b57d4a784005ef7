"""Read YAML into plain data, with the line of each key and list item.

Stricter than PyYAML: no tags, no duplicate keys, only text as keys, and limits on size and depth, so that no file can
hang the process or fill the memory. Values are read as by PyYAML: `1e-5` is text, `yes` is true.
"""

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml
from yaml.constructor import SafeConstructor
from yaml.error import MarkedYAMLError
from yaml.reader import ReaderError

from posttrain.base.text import as_shown
from posttrain.config.keys import KeyPath, dotted, is_secret, one_error, shortened, shown
from posttrain.errors import ConfigError

MAX_BYTES = 1024 * 1024
MAX_NODES = 100_000
MAX_CHARACTERS = 4 * 1024 * 1024
MAX_DEPTH = 50
_LONGEST_NUMBER = 100

_TAG = "tag:yaml.org,2002:"
_TEXTS = {_TAG + "str", _TAG + "value"}
_KEY_AS_WRITTEN = _TEXTS | {_TAG + "bool"}  # `on:` is a key named on, not true
_SCALARS = _TEXTS | {_TAG + kind for kind in ("null", "bool", "int", "float", "timestamp")}


class YamlRefusedError(Exception):
    """A YAML text is refused; holds the line and the reason of each problem."""

    def __init__(self, *problems: tuple[int, str]):
        super().__init__("; ".join(reason for _, reason in problems))
        self.problems = problems


@dataclass
class YamlSource:
    """The plain data of one YAML text. `lines` maps every key path to its line, from 1; `()` is the root."""

    data: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)


def parse_yaml(text: str) -> YamlSource:
    """Parse one YAML document; an empty one gives None. Raises `YamlRefusedError`."""
    loader = None
    try:
        loader = _BoundedLoader(text)
        node = loader.get_single_node()
    except ReaderError as error:
        reason = f"unacceptable character U+{ord(text[error.position]):04X}: {error.reason}"
        raise YamlRefusedError((text.count("\n", 0, error.position) + 1, reason)) from None
    except MarkedYAMLError as error:
        raise YamlRefusedError(_syntax_problem(error)) from None
    except (ValueError, OverflowError):  # chr() of an escape such as "\UFFFFFFFF"
        line = loader.line + 1 if loader else 1
        raise YamlRefusedError((line, "an invalid character escape")) from None
    if node is None:
        return YamlSource()
    builder = _Builder()
    data = builder.build(node, ())
    if builder.problems:
        raise YamlRefusedError(*sorted(builder.problems.values()))
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
        raise ConfigError(f"{name}:{source.lines[()]}: the file contains {found}; a config is `key: value` lines")
    return source


def _read_text(path: Path) -> str:
    name = as_shown(path)
    try:
        # Opening a pipe waits for a writer, which may never come.
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ConfigError(f"{name}: this is a pipe or a device, not a file; write the config to a file first")
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        start = "" if path.is_absolute() else f", which is relative to {os.getcwd()}"
        raise ConfigError(f"{name}: there is no such file; check the path{start}") from None
    except IsADirectoryError:
        raise ConfigError(f"{name}: this is a folder; give the YAML file in it") from None
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than {MAX_BYTES // 1024} KiB; is this a config file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: not UTF-8 text; save the file as UTF-8") from None


def _syntax_problem(error: MarkedYAMLError) -> tuple[int, str]:
    """The line, and PyYAML's message without text quoted from the file, which may be secret; single characters stay."""
    line = error.problem_mark.line + 1 if error.problem_mark else 1
    reason = error.problem or "not valid YAML"
    if error.context:
        since = f" on line {error.context_mark.line + 1}" if error.context_mark else ""
        reason = f"{error.context}{since}, {reason}"
    reason = re.sub(r"'[^']*'", lambda quoted: quoted[0] if len(quoted[0]) < 5 or "<" in quoted[0] else "'…'", reason)
    return line, f"{reason}; indent with spaces, or put the value in quotes"


class _BoundedLoader(yaml.SafeLoader):
    """Checks the limits while composing, since PyYAML recurses once per level and would overflow the stack."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH + 1:
            self._refuse(f"nested deeper than {MAX_DEPTH} levels")
        if self.nodes > MAX_NODES:
            self._refuse(f"more than {MAX_NODES} values; is this a config file?")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def _refuse(self, reason: str) -> NoReturn:
        raise YamlRefusedError((self.peek_event().start_mark.line + 1, reason))


class _Builder:
    """Turns nodes into data. Aliases are expanded, so the limits hold for the expanded document."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        # By node, so that a problem inside an anchor is reported once, however often the anchor is used.
        self.problems: dict[int, tuple[int, str]] = {}
        self._nodes = 0
        self._characters = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.lines.setdefault(path, _line(node))
        self._count(node, 1, len(path))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            data = {}
            for key, (key_node, value_node) in self._pairs(node, path, len(path)).items():
                self.lines[(*path, key)] = _line(key_node)
                data[key] = self.build(value_node, (*path, key))
            return data
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self._scalar(node, path)
        tag = "a tag" if is_secret(path) else f"the tag `{shortened(node.tag.replace(_TAG, '!!'))}`"
        return self._problem(node, path, f"{tag} is not allowed in config files; remove it")

    def _pairs(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key and value nodes by key: the mapping's own win over merged ones (`<<`), and earlier merges over later."""
        self._count(node, len(node.value), depth)
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        bases: list[yaml.Node] = []
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                bases += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            elif (key := self._key(key_node, path)) in pairs:
                first = f"first on line {_line(pairs[key][0])}"
                self._problem(key_node, (*path, key), f"given twice, {first}; keep one")
            elif key is not None:
                pairs[key] = key_node, value_node
        for base in bases:
            if isinstance(base, yaml.MappingNode):
                pairs = self._pairs(base, path, depth + 1) | pairs
            else:
                self._problem(base, path, "`<<` takes a mapping, or a list of mappings")
        return pairs

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            return self._problem(node, path, "a list or mapping cannot be a key; write the key as text")
        if node.tag not in _KEY_AS_WRITTEN:
            text = shortened(node.value)
            return self._problem(node, path, f'the key {text} is not text; put it in quotes: "{text}"')
        return self._text(node, path)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        if node.tag in _TEXTS:
            return self._text(node, path)
        try:
            if len(node.value) <= _LONGEST_NUMBER:
                return SafeConstructor().construct_object(node)
        except (ValueError, KeyError, AttributeError, OverflowError):
            pass
        kind = node.tag.removeprefix(_TAG)
        return self._problem(node, path, f"{shown(node.value, path)} is not a valid {kind}; put it in quotes")

    def _text(self, node: yaml.ScalarNode, path: KeyPath) -> str | None:
        self._characters += len(node.value)
        if self._characters > MAX_CHARACTERS:
            raise YamlRefusedError((_line(node), f"the aliases expand to more than {MAX_CHARACTERS} characters"))
        try:
            node.value.encode()
        except UnicodeEncodeError:  # a lone surrogate, from an escape such as "\ud800"
            return self._problem(node, path, "an escape for a lone surrogate, which is not a character")
        return node.value

    def _count(self, node: yaml.Node, more: int, depth: int) -> None:
        self._nodes += more
        if self._nodes > MAX_NODES:
            raise YamlRefusedError((_line(node), f"the aliases expand to more than {MAX_NODES} values"))
        if depth > MAX_DEPTH:
            raise YamlRefusedError((_line(node), f"nested deeper than {MAX_DEPTH} levels, or an alias inside itself"))

    def _problem(self, node: yaml.Node, path: KeyPath, reason: str) -> None:
        at = f"{dotted(path)}: " if path else ""
        self.problems.setdefault(id(node), (_line(node), at + reason))


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1
