"""Finds, imports and checks what users write in Python, so that what is wrong with it is told at the start."""

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import JsonValue

from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import ConfigError

Scorer = Callable[[GradeInput], object]


def split_place(place: str) -> tuple[str, str]:
    """`file.py:Name` in two; ValueError where it has another form."""
    where, colon, name = place.rpartition(":")
    if not (colon and where and name.isidentifier()):
        raise ValueError(f"{place!r} must end with a colon and the name of a function or class, as in grader.py:score")
    return where, name


def load_scorer(module: str | None, path: str | None, params: Mapping[str, JsonValue]) -> Scorer:
    """What scores one completion: made once per process for equal arguments.

    Raises:
        ConfigError: the code is not there, cannot be imported, or cannot be called as it must be.
    """
    return _load_scorer(module, path, json.dumps(params, sort_keys=True))


@lru_cache(maxsize=256)
def _load_scorer(module: str | None, path: str | None, params: str) -> Scorer:
    place = module or path or ""
    where, name = split_place(place)
    loaded = _import_module(where) if module else _import_file(Path(where))
    if not hasattr(loaded, name):
        raise ConfigError(f"{where} has no {name!r}")
    return _as_scorer(getattr(loaded, name), json.loads(params), place)


def find_module_file(place: str) -> Path:
    """The source file of `package.module:Name`; ConfigError where it has none."""
    name = split_place(place)[0]
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"there is no module {name!r}: {error}") from None
    if found is None or not found.has_location or found.origin is None:
        raise ConfigError(f"there is no module {name!r} with a file of its own")
    return Path(found.origin)


def _import_module(name: str) -> ModuleType:
    find_module_file(f"{name}:module")
    return _imported(name, lambda: importlib.import_module(name))


def _import_file(path: Path) -> ModuleType:
    """The file as a module under a name that no other has. What is installed wins over neighbours of its name."""
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    name = f"user_code_{blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file; its name must end with .py")
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module  # dataclasses and pickle look a class up by its module
    try:
        _imported(str(path), lambda: loader.exec_module(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _imported(what: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ConfigError(f"{what} cannot be imported: {_named(error)}") from error


def _as_scorer(found: object, params: dict[str, Any], place: str) -> Scorer:
    if inspect.isclass(found):
        return _from_class(found, params, place)
    if not callable(found):
        raise ConfigError(f"{place} is neither a function nor a class but {type(found).__name__}")
    _require_call(found, params, place)
    return lambda item: found(item, **params)


def _from_class(found: type, params: dict[str, Any], place: str) -> Scorer:
    try:
        made = found(**params)
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        raise ConfigError(f"{place} cannot be made with the params {sorted(params)}: {_named(error)}") from error
    score = getattr(made, "score", None)
    if not callable(score):
        raise ConfigError(f"the class {place} has no method score")
    _require_call(score, {}, f"{place}.score")
    return score


def _require_call(function: Callable[..., object], params: Mapping[str, Any], place: str) -> None:
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{place} is async; make it a plain function, or serve it over HTTP (type: http)")
    try:
        inspect.signature(function).bind(None, **params)
    except TypeError as error:
        takes = f" and the params {sorted(params)}" if params else ""
        raise ConfigError(f"{place} must take one completion{takes}: {error}") from None
    except ValueError:  # built-in functions have no signature
        return


def _named(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
