"""Load a config file into its model, and report all its errors at once."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from posttrain.base.text import as_shown
from posttrain.config.errors import MOST_FOUND, find_problems
from posttrain.config.keys import KeyPath, Place, dotted, nearest_place, one_error, read_dotted
from posttrain.config.overrides import apply_override, parse_override
from posttrain.config.yaml_source import MAX_BYTES, read_yaml
from posttrain.errors import ConfigError

T = TypeVar("T", bound=BaseModel)

_AFTER_ALL_LINES = MAX_BYTES


def load_config(path: Path, model: type[T], overrides: Sequence[str] = ()) -> T:
    """Read a YAML file, apply `--set` overrides in order, and validate.

    Raises one `ConfigError` with all problems, by line. The config keeps nothing of the file it came from.
    """
    path = Path(path)
    source = read_yaml(path)
    data: dict[str, Any] = source.data
    name = as_shown(path)
    places = {key: Place(line, f"{name}:{line}") for key, line in source.lines.items()}
    lines, failed = _apply_overrides(data, places, overrides)
    config, are_all = None, True
    try:
        config = model.model_validate(data, context={"base_dir": path.absolute().parent})
    except ValidationError as error:
        are_all = error.error_count() <= MOST_FOUND
        for problem in find_problems(error, model, data):
            if not any(_overlap(problem.path, other) for other in failed):
                place = nearest_place(places, problem.path)
                key = f"{dotted(problem.path)}: " if problem.path else ""
                lines.append((place.order, f"{place.label}: {key}{problem.text}"))
    if config is None or lines:
        texts = [line for _, line in sorted(lines, key=lambda line: line[0])]
        raise one_error(path, texts, are_all=are_all) from None
    return config


def read_raw(path: Path) -> dict[str, Any]:
    """The plain data of a config file, as written."""
    return read_yaml(Path(path)).data


def _apply_overrides(
    data: dict[str, Any], places: dict[KeyPath, Place], overrides: Sequence[str]
) -> tuple[list[tuple[int, str]], list[KeyPath]]:
    """Change data and places; return the problems, and the key paths that overrides failed to set."""
    problems, failed = [], []
    for order, text in enumerate(overrides, start=_AFTER_ALL_LINES):
        try:
            override = parse_override(text)
            path = apply_override(data, override)
        except ConfigError as error:
            problems.append((order, str(error)))
            head = read_dotted(text)
            failed += [head[0]] if head else []
            continue
        for old in [key for key in places if key[: len(path)] == path]:
            del places[old]
        for end in range(1, len(path) + 1):
            places.setdefault(path[:end], Place(order, override.label))
    return problems, failed


def _overlap(path: KeyPath, failed: KeyPath) -> bool:
    """Whether a problem may come only from an override that failed: at its key, inside it, or around it."""
    return all(str(one) == str(other) for one, other in zip(path, failed, strict=False))
