"""Load config files with `--set` overrides, and report all their errors at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from posttrain.base.text import as_shown
from posttrain.config.errors import MOST_FOUND, find_problems
from posttrain.config.extends import MOST_FILES, marked, read_config
from posttrain.config.keys import (
    KeyPath,
    Place,
    dotted,
    is_secret,
    mentions_secret,
    one_error,
    read_dotted,
    shortened,
    told,
)
from posttrain.config.strict import StrictModel
from posttrain.config.yaml_source import YamlRefusedError, parse_yaml
from posttrain.errors import ConfigError

T = TypeVar("T", bound=BaseModel)

_DATA_ENDINGS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet")


def load_config(path: Path, model: type[T], overrides: "Sequence[str | Override]" = ()) -> T:
    """Read a YAML file, apply overrides in order, the text of `--set` or others, and validate.

    Raises one `ConfigError` with all problems, sorted by line. Of its files the config keeps only `origins`.
    """
    path = Path(path)
    if path.name.lower().removesuffix(".gz").endswith(_DATA_ENDINGS):
        raise ConfigError(
            f"{as_shown(path)} is data, not a config; toolkit-init --data {as_shown(path)} writes a config for it"
        )
    source = read_config(path)
    data, places = source.data, dict(source.places)
    lines, failed = _apply_overrides(data, places, overrides)
    config, are_all = None, True
    try:
        config = model.model_validate(data, context={"base_dir": path.absolute().parent})
    except ValidationError as error:
        are_all = error.error_count() <= MOST_FOUND
        for problem in find_problems(error, model, data):
            if not any(_overlap(problem.path, other) for other in failed):
                place, text = told(places, problem)
                lines.append((place.order, f"{place.label}: {text}"))
    if config is None or lines:
        texts = [line for _, line in sorted(lines, key=lambda line: line[0])]
        raise one_error(path, texts, are_all=are_all) from None
    if isinstance(config, StrictModel):
        config.origins.update({key: place.label for key, place in places.items()})
    return config


def read_raw(path: Path) -> dict[str, Any]:
    """The plain data of a config file over what it extends, without overrides, defaults or validation."""
    return read_config(Path(path)).data


def _apply_overrides(
    data: dict[str, Any], places: dict[KeyPath, Place], overrides: "Sequence[str | Override]"
) -> tuple[list[tuple[tuple[int, int], str]], list[KeyPath]]:
    """Apply overrides to `data` and `places`; return the problems and the key paths that could not be set."""
    problems, failed = [], []
    for number, each in enumerate(overrides):
        order = MOST_FILES + 1, number
        try:
            override = each if isinstance(each, Override) else parse_override(each)
            path = apply_override(data, override)
        except ConfigError as error:
            problems.append((order, str(error)))
            failed += [each.path] if isinstance(each, Override) else [head[0] for head in [read_dotted(each)] if head]
            continue
        for old in [key for key in places if key[: len(path)] == path]:
            del places[old]
        for end in range(1, len(path) + 1):
            places.setdefault(path[:end], Place(order, override.label))
        places.update(dict.fromkeys(_inside(override.value, path), Place(order, override.label)))
    return problems, failed


def _inside(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """The path of each key and list item in a value that lies at `path`."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from _inside(item, (*path, key))


def _overlap(path: KeyPath, failed: KeyPath) -> bool:
    """Whether a failed override may be the only cause of a problem: it is at, inside or around the override's key."""
    return all(str(one) == str(other) for one, other in zip(path, failed, strict=False))


@dataclass(frozen=True)
class Override:
    """One value that replaces a file's."""

    path: tuple[str, ...]
    """Keys as typed; list indices are still text, since only the file shows which values are lists."""

    value: Any
    """Plain data; in a `--set`, its strings are `TextFrom` the current folder."""

    label: str
    """Its name in messages."""


def parse_override(text: str) -> Override:
    """Split at the first `=` after the key path, and read the value as YAML: numbers, lists, null, text.

    `a.b=` sets the empty text. A key that contains a dot takes double quotes: `datasets."v1.1".split=dev`.
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
    """Set the value in `data`, creating missing sections; return its path, with list indices as integers."""
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
        raise ConfigError(f"{label}: YAML reads everything after # as a comment; put the value in double quotes")
    return marked(source.data, Path.cwd())


def _ends_in_a_comment(text: str, data: Any) -> bool:
    """Whether the text ends in a comment: only then does one more letter not change the data."""
    try:
        return parse_yaml(text.rstrip() + "x").data == data
    except YamlRefusedError:
        return False


def _key_in(container: Any, part: str, path: KeyPath, override: Override) -> str | int:
    if isinstance(container, dict):
        return part
    at = dotted(path)
    if not isinstance(container, list):
        raise ConfigError(f"{override.label}: {at} holds a single value, so nothing can be set inside it")
    if not (part.isascii() and part.isdigit()):
        raise ConfigError(f"{override.label}: {at} is a list; the next part must be a number, not {shortened(part)}")
    # Python refuses to read a number of thousands of digits, and no list is that long.
    index = int(part) if len(part) < 10 else len(container)
    if index >= len(container):
        count = f"has items 0 to {len(container) - 1}" if container else "is empty"
        raise ConfigError(f"{override.label}: there is no {at}.{shortened(part)}: the list {count}")
    return index
