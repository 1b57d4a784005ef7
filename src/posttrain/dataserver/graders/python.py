"""Grader `python`: take the score from the user's own function or class."""

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationInfo, field_validator, model_validator

from posttrain.base.files import require_file
from posttrain.base.user_code import error_in_words, find_module_file, import_file, import_module, split_place
from posttrain.config.strict import base_folder, config_folder, resolve_path
from posttrain.dataserver.graders.base import Grader, Score, checked_score
from posttrain.dataserver.graders.remote import require_no_secret
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import ConfigError

Scorer = Callable[[GradeInput], object]


class PythonGrader(Grader):
    """The score given by a function or class of yours.

    A function takes the `GradeInput` and the params as keyword arguments. A class takes the params when it is created,
    once per grading process, and has a method `score` that takes the `GradeInput`. Both return a number in [0, 1], or a
    `Score` with a short comment; `raise Abstain(why)` if a completion cannot be judged. Your code is trusted: it runs
    with the rights of the server.
    """

    # An instance that becomes part of a larger config is validated again, under the names of its fields.
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    is_users_code: ClassVar[bool] = True

    type: Literal["python"] = "python"

    import_: str | None = Field(default=None, alias="import", min_length=1)
    """`package.module:Name` of something importable; give this or `path`."""

    path: str | None = Field(default=None, min_length=1)
    """`file.py:Name` of a file in the config file's folder, or below it; it can import its neighbours."""

    params: dict[str, JsonValue] = Field(default={})
    """Keyword arguments for the function or class."""

    @field_validator("path", mode="before")
    @classmethod
    def _stays_beside_the_config(cls, path: object, info: ValidationInfo) -> object:
        if not isinstance(path, str) or not path:
            return path
        file, name = split_place(path)
        resolved = resolve_path(file, info, of=path)
        # A path in an extended file starts from its folder, one in `--set` from the current one.
        folders = [
            os.path.realpath(each) for each in (config_folder(info), base_folder(path, info)) if each is not None
        ]
        real = os.path.realpath(resolved)
        if folders and not any(os.path.commonpath([folder, real]) == folder for folder in folders):
            raise ValueError(f"{resolved} is outside of {folders[0]}, the folder of the config file; move it there")
        return f"{resolved}:{name}"

    @field_validator("params")
    @classmethod
    def _hold_no_secret(cls, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        require_no_secret(params, "read it from the environment")
        return params

    @field_validator("import_")
    @classmethod
    def _names_something(cls, place: str | None) -> str | None:
        if place is not None:
            split_place(place)
        return place

    @model_validator(mode="after")
    def _exactly_one_place(self) -> "PythonGrader":
        if (self.import_ is None) == (self.path is None):
            raise ValueError("give either import (package.module:Name) or path (file.py:Name)")
        return self

    def load(self) -> None:
        """Import the code and make the scorer.

        Raises:
            ConfigError: the code is missing, cannot be imported, or cannot be called as required.
        """
        load_scorer(self.import_, self.path, self.params)

    def identity(self) -> str:
        """The SHA-256 of the file with the code. Other files that it imports do not count.

        Raises:
            ConfigError: the file is missing.
        """
        file = find_module_file(self.import_) if self.import_ else Path(split_place(self.path or "")[0])
        require_file(file)
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def score(self, item: GradeInput) -> Score:
        """The score that the user's code returns.

        Raises:
            ValueError: it did not return a score.
        """
        return checked_score(load_scorer(self.import_, self.path, self.params)(item))


def load_scorer(module: str | None, path: str | None, params: Mapping[str, JsonValue]) -> Scorer:
    """The function that scores one completion, made once per process for equal arguments.

    Raises:
        ConfigError: the code is missing, cannot be imported, or cannot be called as required.
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
            f"{place} cannot be created with the params {sorted(params)}: {error_in_words(error)}"
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
