"""Types of single values in a config: names, environment variables, models and data sets, the user's functions."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from posttrain.base.secrets import hide_variable
from posttrain.base.text import as_url
from posttrain.base.user_code import split_place
from posttrain.config.strict import resolve_path

# Control characters, line breaks, characters that change the direction of text, and surrogates.
_NOT_FOR_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(name: str) -> str:
    """Return the name; ValueError if it contains a character that would affect how a terminal shows it."""
    if found := _NOT_FOR_NAMES.search(name):
        raise ValueError(f"a name must be plain text on one line; remove U+{ord(found.group()):04X}")
    return name


OneLine = Annotated[str, AfterValidator(one_line)]
"""Text that is safe within a line of a log."""


_VARIABLE = re.compile("[A-Z_][A-Z0-9_]{0,99}")


def _names_a_variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        # The value may be the token itself, so it is not repeated.
        raise ValueError("should be the name of an environment variable, in capitals, not the token itself")
    hide_variable(name)
    return name


VariableName = Annotated[str, AfterValidator(_names_a_variable)]
"""Name of an environment variable, in capitals. Its value is never shown once a config has named it."""


_WILD = frozenset("*?")
# Endings of file names; a hub id with one of them would be strange.
_FILE_ENDINGS = (".gguf", ".jsonl", ".json", ".jsonl.gz", ".parquet", ".csv", ".tsv")


def _resolve_local(value: object, info: ValidationInfo) -> object:
    """Make a value that is meant as a local path absolute, like all paths in a config; leave other names alone."""
    if not isinstance(value, str) or not value.strip():
        return value
    if (url := as_url(value)) is not None:
        return without_credentials(url)
    path = resolve_path(value, info)
    has_ending = value.lower().endswith(_FILE_ENDINGS) or not _WILD.isdisjoint(value)
    meant_as_path = value.startswith((".", "/", "~")) or has_ending or _begins_with_a_folder(value, info)
    return str(path) if meant_as_path or Path(path).exists() else value


def _begins_with_a_folder(value: str, info: ValidationInfo) -> bool:
    """Whether the part before the first slash is a folder, as in a path whose end is misspelt."""
    first, slash, _ = value.partition("/")
    return bool(slash) and resolve_path(first, info, of=value).is_dir()


def without_credentials(url: str) -> str:
    """Return the address; ValueError, which does not repeat it, if it contains a user, a password or a signature."""
    scheme, _, rest = url.partition("://")
    if "@" in rest.partition("/")[0]:
        raise ValueError(
            "the address has a user or password, which would be written down; leave them to the environment"
        )
    if scheme in ("http", "https") and ("?" in rest or "#" in rest):
        raise ValueError("the address has a query, which may be a signature and would be written down; leave it out")
    return url


LocalOrNamed = Annotated[str, BeforeValidator(_resolve_local), Field(min_length=1)]


def _resolve_data(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str | Path):
        return value
    url = as_url(value)
    return str(resolve_path(value, info)) if url is None else without_credentials(url)


DataPath = Annotated[str, BeforeValidator(_resolve_data)]
"""A file, folder or pattern, made absolute like all paths in a config, or the address of data elsewhere."""


def resolve_place(place: object, info: ValidationInfo) -> object:
    """`file.py:name` with the file made absolute; what is no text is left to its own check."""
    if not isinstance(place, str):
        return place
    file, name = split_place(place)
    return f"{resolve_path(file, info, of=place)}:{name}"


FunctionPlace = Annotated[str, BeforeValidator(resolve_place)]
"""`file.py:name`, with the file made absolute like all paths in a config."""
