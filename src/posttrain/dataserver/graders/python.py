"""python: a grader that the user wrote."""

import hashlib
import os
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, JsonValue, ValidationInfo, field_validator, model_validator

from posttrain.base.files import require_file
from posttrain.base.user_code import find_module_file, split_place
from posttrain.config.strict import resolve_path
from posttrain.dataserver.graders.base import Grader, Score, checked_score
from posttrain.dataserver.graders.remote import require_no_secret
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.graders.user_code import load_scorer


class PythonGrader(Grader):
    """The score that a function or class of yours gives.

    A function takes the `GradeInput` and the params as keywords. A class takes the params when it is made, once per
    grading process, and has a method `score` that takes the `GradeInput`. Both answer a number in [0, 1], or a
    `Score` with a few words; `raise Abstain(why)` where a completion cannot be judged. What you write is trusted: it
    runs with the rights of the server.
    """

    # An instance is validated again, under the names of its fields, where it becomes part of a larger config.
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    is_users_code: ClassVar[bool] = True

    type: Literal["python"] = "python"

    import_: str | None = Field(default=None, alias="import", min_length=1)
    """`package.module:Name` of what can be imported; this or `path`."""

    path: str | None = Field(default=None, min_length=1)
    """`file.py:Name` of a file in the folder of the config file, or below it; it can import its neighbours."""

    params: dict[str, JsonValue] = Field(default={})
    """Keyword arguments for the function or class."""

    @field_validator("path")
    @classmethod
    def _stays_beside_the_config(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is None:
            return None
        file, name = split_place(path)
        resolved = resolve_path(file, info)
        base = (info.context or {}).get("base_dir")
        if base is not None:
            folder, real = os.path.realpath(base), os.path.realpath(resolved)
            if os.path.commonpath([folder, real]) != folder:
                raise ValueError(f"{resolved} leads outside of {folder}, the folder of the config file; move it there")
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
            ConfigError: it is not there, cannot be imported, or cannot be called as it must be.
        """
        load_scorer(self.import_, self.path, self.params)

    def identity(self) -> str:
        """The hash of the file that holds the code. Other files that it imports do not count.

        Raises:
            ConfigError: the file is not there.
        """
        file = find_module_file(self.import_) if self.import_ else Path(split_place(self.path or "")[0])
        require_file(file)
        return hashlib.sha256(file.read_bytes()).hexdigest()

    def score(self, item: GradeInput) -> Score:
        """What the user's code answers, if it is a score.

        Raises:
            ValueError: it is none.
        """
        return checked_score(load_scorer(self.import_, self.path, self.params)(item))
