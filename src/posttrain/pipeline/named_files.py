"""The files that a config names, with the Python files that these import from their own folder."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from posttrain.base.cache import file_digest
from posttrain.base.user_code import split_place

_CONFIGS = (".yaml", ".yml")


def file_digests(config: BaseModel) -> dict[str, str]:
    """The digest of each file that a config names, by its key, without folders and other configs."""
    found: dict[str, str] = {}
    for key, path in named_files(config):
        if path.suffix in _CONFIGS:
            continue  # a comment in it changes nothing; see `resolved`
        found[key] = file_digest(path)
        if path.suffix == ".py":
            found |= {f"{key} imports {each.name}": file_digest(each) for each in imported_files(path)}
    return found


def named_files(config: BaseModel, key: str = "") -> Iterator[tuple[str, Path]]:
    """Key and path of each existing file that a config names."""
    for name in type(config).model_fields:
        yield from _named_in(getattr(config, name), f"{key}.{name}" if key else name)


def _named_in(value: Any, key: str) -> Iterator[tuple[str, Path]]:
    if isinstance(value, BaseModel):
        yield from named_files(value, key)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _named_in(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _named_in(item, f"{key}[{number}]")
    elif isinstance(value, str | Path) and (path := _file(str(value))) is not None:
        yield key, path


def _file(text: str) -> Path | None:
    """The file that a value names: all paths of a config are absolute once it is loaded."""
    if not text.startswith("/") or len(text) > 4000:
        return None
    if ".py:" in text:
        text = split_place(text)[0]
    path = Path(text)
    return path if path.is_file() else None


def without_places(value: Any, steps: Mapping[str, str] = {}) -> Any:
    """Plain data with `<file>` and `<folder>` for what exists, since its content counts and not where it is.

    Args:
        steps: names of steps by their folders, which stand for paths in these.
    """
    if isinstance(value, Mapping):
        return {key: without_places(item, steps) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_places(item, steps) for item in value]
    if not isinstance(value, str | Path):
        return value
    text = str(value)
    for folder, name in steps.items():
        if text == folder or text.startswith(f"{folder}/"):
            return f"<{name}>{text[len(folder) :]}"
    if (file := _file(text)) is not None:
        return f"<file>{text.removeprefix(str(file))}"  # a function's name may follow
    return "<folder>" if text.startswith("/") and Path(text).is_dir() else text


def imported_files(path: Path) -> list[Path]:
    """The files in the folder of a Python file that it imports, also indirectly, sorted by name."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        for name in _imported_names(waiting.pop()):
            for each in (path.parent / f"{name}.py", path.parent / name / "__init__.py"):
                if each.is_file() and each not in found and each != path:
                    found.add(each)
                    waiting.append(each)
    return sorted(found)


def _imported_names(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()  # the step that imports it says what is wrong
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names
