"""The inside of `yaml_source`: composes YAML nodes within limits, and turns them into data and lines."""

from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from posttrain.config.keys import KeyPath, dotted, is_secret, shortened, shown

MAX_NODES = 100_000
MAX_CHARACTERS = 4 * 1024 * 1024
MAX_DEPTH = 50
_LONGEST_NUMBER = 100

_TAG = "tag:yaml.org,2002:"
_KEY_AS_WRITTEN = {_TAG + "str", _TAG + "bool", _TAG + "value"}  # `on:` is a key named on, not true
_KINDS = {
    "null": "null",
    "bool": "true or false",
    "int": "an integer",
    "float": "a number",
    "timestamp": "a date",
}
_SCALARS = _KEY_AS_WRITTEN | {_TAG + kind for kind in _KINDS}


class YamlRefusedError(Exception):
    """A text that is not taken, with the line and the reason of each problem."""

    def __init__(self, problems: list[tuple[int, str]]):
        super().__init__("; ".join(reason for _, reason in problems))
        self.problems = problems


class BoundedLoader(yaml.SafeLoader):
    """Stops while composing: PyYAML recurses once per level, and would overflow the stack."""

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
        raise YamlRefusedError([(self.peek_event().start_mark.line + 1, reason)])


@dataclass
class Builder:
    """Turns nodes into data. Aliases are copied out, so the count is of what the document expands to."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By node, so that what an anchor holds is told once, however often it is used."""

    nodes: int = 0
    characters: int = 0

    def build(self, node: yaml.Node, path: KeyPath, depth: int) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise YamlRefusedError([(line, f"the aliases expand to more than {MAX_NODES} values")])
        if depth > MAX_DEPTH:
            raise YamlRefusedError([(line, f"nested deeper than {MAX_DEPTH} levels, or an alias inside itself")])
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self._scalar(node, path)
        return self._problem(node, f"{_at(path)}{_tag(node.tag, path)} is not for config files; remove it")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, depth: int) -> dict[str, Any]:
        result, first_lines = {}, {}
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                continue
            line = key_node.start_mark.line + 1
            key = self._key(key_node, path)
            if key is None:
                continue
            if key in first_lines:
                first = f"first on line {first_lines[key]}"
                self._problem(key_node, f"{dotted((*path, key))}: given twice, {first}; keep one")
                continue
            first_lines[key] = line
            self.lines[(*path, key)] = line
            result[key] = self.build(value_node, (*path, key), depth + 1)
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                self._merge(value_node, result, path, depth)
        return result

    def _merge(self, node: yaml.Node, result: dict[str, Any], path: KeyPath, depth: int) -> None:
        """`<<: *base`: the mapping's own keys win over those of `base`, and earlier bases over later ones."""
        bases = node.value if isinstance(node, yaml.SequenceNode) else [node]
        for base in bases:
            if not isinstance(base, yaml.MappingNode):
                self._problem(base, f"{_at(path)}`<<` takes a mapping, or a list of mappings")
                continue
            merged = Builder(nodes=self.nodes, characters=self.characters, problems=self.problems)
            data = merged.build(base, path, depth + 1)
            self.nodes, self.characters = merged.nodes, merged.characters
            new = {key: value for key, value in (data or {}).items() if key not in result}
            result.update(new)
            at = len(path)
            self.lines.update({p: line for p, line in merged.lines.items() if len(p) > at and p[at] in new})

    def _key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            return self._problem(node, f"{_at(path)}a list or mapping cannot be a key; write the key as text")
        if node.tag not in _KEY_AS_WRITTEN:
            text = shortened(node.value)
            return self._problem(node, f'{_at(path)}the key {text} is not text; put it in quotes: "{text}"')
        return self._text(node, path)

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        if node.tag in (_TAG + "str", _TAG + "value"):
            return self._text(node, path)
        kind = _KINDS[node.tag.removeprefix(_TAG)]
        wrong = f"{_at(path)}{shown(node.value, path)} cannot be read as {kind}; put it in quotes"
        if len(node.value) > _LONGEST_NUMBER:
            return self._problem(node, wrong)
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (ValueError, KeyError, AttributeError, OverflowError):
            return self._problem(node, wrong)

    def _text(self, node: yaml.ScalarNode, path: KeyPath) -> str | None:
        self.characters += len(node.value)
        if self.characters > MAX_CHARACTERS:
            line = node.start_mark.line + 1
            raise YamlRefusedError([(line, f"the aliases expand to more than {MAX_CHARACTERS} characters")])
        try:
            node.value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, from an escape such as "\ud800"
            return self._problem(node, f"{_at(path)}an escape that stands for half a character")
        return node.value

    def _problem(self, node: yaml.Node, reason: str) -> None:
        self.problems.setdefault(id(node), (node.start_mark.line + 1, reason))


def _at(path: KeyPath) -> str:
    return f"{dotted(path)}: " if path else ""


def _tag(tag: str, path: KeyPath) -> str:
    return "a tag" if is_secret(path) else f"the tag `{shortened(tag.replace(_TAG, '!!'))}`"
