"""The base class of every config section, and the path type that configs use."""

import os
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from posttrain.config.keys import KeyPath, shown

# Limits of file systems, in bytes; that on paths leaves room for the base folder and for names below the path.
_LONGEST_PART, _LONGEST_PATH = 255, 3000

# Counts and seeds are passed to libraries that store them in 64 bits.
_LARGEST = 2**63 - 1


F = TypeVar("F", Path, Path | None)


class TextFrom(str):
    """Text whose relative paths start from another folder than that of the config: from `--set`, or an extended file.

    It is ordinary text to everything but `resolve_path`, and copies of it are.
    """

    folder: Path

    def __new__(cls, text: str, folder: Path) -> Self:
        """Mark a text."""
        marked = super().__new__(cls, text)
        marked.folder = folder
        return marked

    def __reduce__(self) -> tuple[type, tuple[str]]:
        """Pickle it as plain text."""
        return str, (str(self),)


def folder_of(value: object, default: F) -> Path | F:
    """The folder from which a relative path starts; `default` unless it is marked."""
    return value.folder if isinstance(value, TextFrom) else default


def base_folder(value: object, info: ValidationInfo) -> Path | None:
    """The folder from which a relative path starts; None for a config made in Python."""
    return folder_of(value, config_folder(info))


def config_folder(info: ValidationInfo) -> Path | None:
    """The folder of the config file; None for a config made in Python."""
    return (info.context or {}).get("base_dir")


def resolve_path(value: str | Path, info: ValidationInfo, *, of: object = None) -> Path:
    """Expand `~` and make a relative path absolute.

    A path in a config file is relative to that file's folder (`base_dir` in the validation context, or that of a
    `TextFrom`), one in `--set` to the current folder. Without a context, as in a config made in Python, it stays
    relative, so that defaults are resolved when a file is loaded and not when a module is imported.

    Args:
        of: the whole value, if the path is a part of it.
    """
    if isinstance(value, str) and not value.strip():
        raise ValueError("the path is empty; give one, or leave the key out")
    if "\0" in str(value):
        raise ValueError("the path holds a NUL character, which no file name can have")
    try:
        path = Path(value).expanduser()
    except RuntimeError:
        raise ValueError("the user after `~` has no home folder; write out the full path") from None
    _require_possible(path)
    base = base_folder(value if of is None else of, info)
    return path if base is None else without_dots(Path(base) / path)


def _require_possible(path: Path) -> None:
    """Refuse paths that no file system accepts: even checking whether they exist would raise an error."""
    longest = max(len(os.fsencode(part)) for part in (*path.parts, "."))
    if longest > _LONGEST_PART or len(os.fsencode(path)) > _LONGEST_PATH:
        raise ValueError(f"the path is too long: at most {_LONGEST_PART} bytes between slashes, {_LONGEST_PATH} in all")


def without_dots(path: Path) -> Path:
    """Remove `..` from a path, unless a symbolic link before it would make the result another place."""
    tidy = os.path.normpath(path)
    return Path(tidy) if os.path.realpath(tidy) == os.path.realpath(path) else path


def _path_or_as_is(value: object, info: ValidationInfo) -> object:
    return resolve_path(value, info) if isinstance(value, str | Path) else value


def type_by_default(name: str) -> BeforeValidator:
    """A validator for a union of sections told apart by `type`: one without it is of the type `name`."""

    def with_type(value: object) -> object:
        return {"type": name, **value} if isinstance(value, dict) and "type" not in value else value

    return BeforeValidator(with_type)


def written_as(pattern: str, wanted: str) -> BeforeValidator:
    """A validator of text that says what is `wanted` instead of the regular expression that finds it."""

    def check(value: object) -> object:
        if isinstance(value, str) and not re.search(pattern, value):
            raise ValueError(f"should be {wanted}, found {shown(value)}")
        return value

    return BeforeValidator(check)


ConfigPath = Annotated[Path, BeforeValidator(_path_or_as_is)]


def _refuse_bool(kind: str, value: object) -> object:
    if isinstance(value, bool):
        raise PydanticKnownError("int_type" if kind == "int" else "float_type")
    return value


def _check_int(value: object) -> object:
    """PyYAML reads `1e3` as text but `1.0e+3` as a number; both are the integer 1000."""
    if isinstance(value, str) and "e" in value.lower():
        try:
            number = float(value)
        except ValueError:
            return value
        return _check_int(int(number)) if number.is_integer() else value
    if _is_too_large(value):
        raise PydanticKnownError("int_parsing_size")
    return _refuse_bool("int", value)


def _is_too_large(value: object) -> bool:
    if isinstance(value, str):
        return len(value) > len(str(_LARGEST)) and value.strip("+- ").isdecimal()
    return isinstance(value, int | float) and abs(value) > _LARGEST


def _check_float(value: object) -> object:
    return _refuse_bool("float", value)


_CHECKS = {"int": _check_int, "float": _check_float}
_NESTED = ("schema", "items_schema", "keys_schema", "values_schema", "choices", "fields")


def _guard_numbers(schema: Any) -> Any:
    """Put a check before every integer and number inside a model's core schema.

    Pydantic's lax mode is needed for `1e-5`, but would accept `true` as 1. Nested sections are left alone: they are
    referenced by name and guard themselves.
    """
    if isinstance(schema, list):
        return [_guard_numbers(item) for item in schema]
    if isinstance(schema, tuple):  # a choice of a union, with its label
        return (_guard_numbers(schema[0]), *schema[1:])
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind in _CHECKS:
        return core_schema.no_info_before_validator_function(_CHECKS[kind], schema)  # type: ignore[arg-type]
    if kind == "function-before" and schema["function"]["function"] in _CHECKS.values():
        return schema
    for key in _NESTED:
        if key not in schema:
            continue
        inner = schema[key]
        by_name = isinstance(inner, dict) and key in ("fields", "choices")
        schema[key] = {n: _guard_numbers(s) for n, s in inner.items()} if by_name else _guard_numbers(inner)
    return schema


class StrictModel(BaseModel):
    """Unknown keys are errors, values never change, and the sentence under a field describes it.

    `config.schema` reads the sentences from the source: pydantic would do it whenever a class is made, which takes a
    fifth of the start of a command.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        # A default section such as `run: RunConfig = RunConfig()` is made without a file; validating it again
        # resolves its paths against the folder of the loaded file.
        validate_default=True,
        revalidate_instances="always",
    )

    @cached_property
    def origins(self) -> dict[KeyPath, str]:
        """Where the values were set, such as `base.yaml:12`, by key path; filled for the whole config as it is loaded.

        No part of its value: configs from other files may be equal.
        """
        return {}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _guard_numbers(handler.resolve_ref_schema(schema))
        return schema
