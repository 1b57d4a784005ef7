"""The files that a config names, with those of models, and the Python files that these import from their own folder."""

import ast
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from posttrain.base.cache import file_digest
from posttrain.base.text import as_url
from posttrain.base.user_code import split_place
from posttrain.config.extends import extended_files
from posttrain.data.readers.data_files import find_files, find_remote, is_pattern
from posttrain.errors import DataError

_CONFIGS = (".yaml", ".yml")
# Keys whose value may be a folder or a pattern of data files, or an address.
_OF_DATA = ("path", "accepted", "rejected", "against")
_OF_MODEL = frozenset({".safetensors", ".json", ".jinja", ".gguf", ".bin", ".model", ".txt"})


def file_digests(config: BaseModel, is_made: Callable[[Path], bool] = lambda path: False) -> dict[str, str]:
    """The digest of each file that a config names, by its key, and of the files of each model folder that it names.

    Other configs are left out, since a comment in one changes nothing; see `resolved`.

    Args:
        is_made: whether a step makes a file, so that it counts by the step's digest.
    """
    found: dict[str, str] = {}
    for key, path in named_files(config):
        if path.suffix in _CONFIGS or is_made(path):
            continue
        if (url := as_url(path)) is not None:
            remote = find_remote(url, prose=True).files
            found |= {f"{key}[{number}]": each.version for number, each in enumerate(remote)}
            continue
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if each.suffix in _OF_MODEL and each.is_file())
            found |= {f"{key}, {each.name}": file_digest(each) for each in files}
            continue
        found[key] = file_digest(path)
        if path.suffix == ".py":
            found |= {
                f"{key} imports {each.relative_to(path.parent)}": file_digest(each) for each in imported_files(path)
            }
    return found


def with_extended(path: Path) -> list[Path]:
    """The file and, if it is a config, those that it extends."""
    return [path, *(extended_files(path) if path.suffix in _CONFIGS else ())]


def named_files(config: BaseModel, key: str = "") -> Iterator[tuple[str, Path]]:
    """Key and path of each existing file or model folder that a config names, and of each address of data."""
    for name in type(config).model_fields:
        value, place = getattr(config, name), f"{key}.{name}" if key else name
        if name in _OF_DATA:
            for each in value if isinstance(value, tuple) else (value,):
                yield from _data_in(str(each), place)
        yield from _named_in(value, place)


def _data_in(text: str, key: str) -> Iterator[tuple[str, Path]]:
    """The files of a folder or pattern with data, or the address; a file is found by its path."""
    if as_url(text) is not None:
        yield key, Path(text)
    if not text.startswith("/") or not (is_pattern(text) or os.path.isdir(text)):
        return
    try:
        files = find_files(Path(text), prose=True).files
    except DataError:  # whoever reads the data says what is wrong with it
        return
    yield from ((f"{key}[{number}]", file) for number, file in enumerate(files))


def _named_in(value: Any, key: str) -> Iterator[tuple[str, Path]]:
    if isinstance(value, BaseModel):
        yield from named_files(value, key)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _named_in(item, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from _named_in(item, f"{key}[{number}]")
    elif isinstance(value, str | Path):
        path = _file(str(value)) or _model_folder(str(value))
        if path is not None:
            yield key, path


def _file(text: str) -> Path | None:
    """The file that a value names: all paths of a config are absolute once it is loaded."""
    if not text.startswith("/"):
        return None
    try:
        path = Path(split_place(text)[0] if ".py:" in text else text)
        return path if path.is_file() else None
    except (OSError, ValueError):  # a text that begins with a slash
        return None


def _model_folder(text: str) -> Path | None:
    """The folder of a model or an adapter that a value names."""
    if not text.startswith("/"):
        return None
    try:
        is_model = any(Path(text, name).is_file() for name in ("config.json", "adapter_config.json"))
    except (OSError, ValueError):
        return None
    return Path(text) if is_model else None


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
    return "<folder>" if text.startswith("/") and _is_folder(text) else text


def _is_folder(text: str) -> bool:
    try:
        return Path(text).is_dir()
    except (OSError, ValueError):
        return False


def imported_files(path: Path) -> list[Path]:
    """The files below the folder of a Python file that it imports, also indirectly, sorted by name."""
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        for place in _imported_places(file, path.parent):
            for each in (place.with_suffix(".py"), place / "__init__.py"):
                if each.is_file() and each not in found and each != path:
                    found.add(each)
                    waiting.append(each)
    return sorted(found)


def _imported_places(file: Path, root: Path) -> set[Path]:
    """Where the modules that a file imports would be, without an ending, below `root`."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return set()  # the step that imports it says what is wrong
    places: set[Path] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                places |= _with_parents(root, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            folder = file.parents[node.level - 1] if node.level else root
            module = node.module.split(".") if node.module else []
            for alias in node.names:  # a name may be a module too
                places |= _with_parents(folder, [*module, alias.name])
    return {place for place in places if place.is_relative_to(root)}


def _with_parents(folder: Path, names: list[str]) -> set[Path]:
    return {folder.joinpath(*names[:end]) for end in range(1, len(names) + 1)}
