"""Types of single values in a config: names, environment variables, models and data sets, the user's functions."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from posttrain.base.secrets import hide_variable
from posttrain.base.user_code import split_place
from posttrain.config.strict import resolve_path

# What steers a terminal or breaks a line, what turns the direction of writing, and halves of characters.
_NOT_FOR_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(name: str) -> str:
    """The name as it is; ValueError where it would do more in a terminal than stand there."""
    if found := _NOT_FOR_NAMES.search(name):
        raise ValueError(f"a name is plain text on one line, without U+{ord(found.group()):04X}; take that out")
    return name


OneLine = Annotated[str, AfterValidator(one_line)]
"""Text that can stand in a line of a log."""


_VARIABLE = re.compile("[A-Z_][A-Z0-9_]{0,99}")


def _names_a_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        # The value may be the token itself, so it is not repeated.
        raise ValueError("wanted the name of an environment variable, in capitals; the token itself does not go here")
    hide_variable(name)
    return name


VariableName = Annotated[str, AfterValidator(_names_a_variable)]
"""Name of an environment variable, in capitals. What it holds is shown nowhere once a config has named it."""


# What only a file is called; a hub id of this ending would be strange.
_FILE_ENDINGS = (".gguf", ".jsonl", ".json", ".jsonl.gz", ".parquet", ".csv", ".tsv")


def _resolve_local(value: object, info: ValidationInfo) -> object:
    """Make what is meant as a local path absolute, by the rule of all paths in a config; leave other names alone."""
    if not isinstance(value, str) or not value.strip():
        return value
    meant_as_path = value.startswith((".", "/", "~")) or value.lower().endswith(_FILE_ENDINGS)
    path = resolve_path(value, info)
    return str(path) if meant_as_path or Path(path).exists() else value


LocalOrNamed = Annotated[str, BeforeValidator(_resolve_local), Field(min_length=1)]


def _resolved(place: str, info: ValidationInfo) -> str:
    file, name = split_place(place)
    return f"{resolve_path(file, info)}:{name}"


FunctionPlace = Annotated[str, AfterValidator(_resolved)]
"""`file.py:name`, of which the file is made absolute as every path of a config is."""
