"""Parse `--set key.path=value` and apply it to a config file's data before validation."""

from dataclasses import dataclass
from typing import Any

from posttrain.config.keys import KeyPath, dotted, is_secret, mentions_secret, read_dotted, shortened
from posttrain.config.strict import OverrideText
from posttrain.config.yaml_source import YamlRefusedError, parse_yaml
from posttrain.errors import ConfigError


@dataclass(frozen=True)
class Override:
    """One value to put in place of a file's."""

    path: tuple[str, ...]
    """Keys as typed; a list index is still text, since only the file tells what is a list."""

    value: Any
    """Plain data; its texts are marked, so that paths among them start from the current folder."""

    label: str
    """How messages call it."""


def parse_override(text: str) -> Override:
    """Split at the first `=` after the key path, and read the value as YAML: numbers, lists, null, text.

    `a.b=` is the empty text. A key with a dot in it is written in double quotes: `datasets."v1.1".split=dev`.
    """
    head = read_dotted(text)
    if head is None or not head[1].startswith("="):
        typed = "***" if mentions_secret(text) else shortened(text)
        raise ConfigError(f"--set {typed}: write it as key=value, such as --set training.seed=1")
    path, value_text = head[0], head[1][1:]
    hidden = is_secret(path) or mentions_secret(value_text)
    label = f"--set {dotted(path)}={'***' if hidden else shortened(value_text)}"
    return Override(path, _parse_value(value_text, label), label)


def apply_override(data: dict[str, Any], override: Override) -> KeyPath:
    """Set the value in `data`, making the sections on its way; return its path, list indices as numbers."""
    here: Any = data
    path: KeyPath = ()
    for part in override.path[:-1]:
        key = _key_in(here, part, path, override)
        if (here.get(key) if isinstance(here, dict) else here[key]) is None:
            here[key] = {}
        here = here[key]
        path = (*path, key)
    last = _key_in(here, override.path[-1], path, override)
    here[last] = override.value
    return (*path, last)


def _parse_value(text: str, label: str) -> Any:
    if not text.strip():
        return ""
    try:
        source = parse_yaml(text)
    except YamlRefusedError as error:
        raise ConfigError(f"{label}: the value is not valid YAML: {error}") from None
    if "#" in text and _ends_in_a_comment(text, source.data):
        raise ConfigError(f"{label}: YAML takes what follows # as a comment; put the value in double quotes")
    return _marked(source.data)


def _ends_in_a_comment(text: str, data: Any) -> bool:
    """A letter more changes every value, but no comment."""
    try:
        return parse_yaml(text.rstrip() + "x").data == data
    except YamlRefusedError:
        return False


def _marked(value: Any) -> Any:
    if isinstance(value, str):
        return OverrideText(value)
    if isinstance(value, list):
        return [_marked(item) for item in value]
    return {key: _marked(item) for key, item in value.items()} if isinstance(value, dict) else value


def _key_in(container: Any, part: str, path: KeyPath, override: Override) -> str | int:
    if isinstance(container, dict):
        return part
    at = dotted(path)
    if not isinstance(container, list):
        raise ConfigError(f"{override.label}: {at} holds a single value, so nothing can be set inside it")
    if not (part.isascii() and part.isdigit()):
        raise ConfigError(f"{override.label}: {at} is a list; after it comes a number, not {shortened(part)}")
    # Python refuses to read a number of thousands of digits, and no list is that long.
    index = int(part) if len(part) < 10 else len(container)
    if index >= len(container):
        count = f"has items 0 to {len(container) - 1}" if container else "is empty"
        raise ConfigError(f"{override.label}: there is no {at}.{shortened(part)}: the list {count}")
    return index
