"""Finds, imports and checks what users write in Python, so that what is wrong with it is told at the start."""

import inspect
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from posttrain.base.user_code import error_in_words, import_file, import_module, split_place
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import ConfigError

Scorer = Callable[[GradeInput], object]


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
    loaded = import_module(where) if module else import_file(Path(where))
    if not hasattr(loaded, name):
        raise ConfigError(f"{where} has no {name!r}")
    return _as_scorer(getattr(loaded, name), json.loads(params), place)


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
        raise ConfigError(
            f"{place} cannot be made with the params {sorted(params)}: {error_in_words(error)}"
        ) from error
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
