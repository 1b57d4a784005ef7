"""Turn pydantic's validation errors into problems of one line each, with their key paths."""

import difflib
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from posttrain.base.text import on_one_line
from posttrain.config.keys import EXTENDS, KeyPath, Problem, is_secret, shown
from posttrain.config.peer_keys import BY_NAME

MOST_FOUND = 200
"""How many of pydantic's errors are reported; thousands would take minutes, and nobody reads them."""

_LONGEST_MESSAGE = 500
_ABOUT_THE_TYPE = {*get_args(ErrorType), "path_type"} - {"value_error", "assertion_error"}
_NO_SECTION = ("model_type", "model_attributes_type")
# Replacements for pydantic messages that use Python's names.
_IN_YAML_WORDS = {
    "dict_type": "should be a mapping of names to values",
    "tuple_type": "should be a list",
    "path_type": "should be a path",
    "string_type": "should be text",
    "int_parsing_size": "should be an integer that fits in 64 bits",
}
_NOT_TOLD = re.compile("^(Input|String|Tuple|List|Dictionary) |, unable to .*| after validation.*")


@dataclass(frozen=True)
class _Finding:
    """What is wrong at one key path."""

    path: KeyPath
    takes: list[Any]
    """Types allowed at the path."""
    section: list[Any]
    """Types allowed one level up."""
    branches: tuple[tuple[KeyPath, str], ...]
    """Unions on the path, outermost first: the key path of each, and the member that pydantic tried."""
    error: ErrorDetails
    others: tuple["_Finding", ...] = ()
    """Findings for the other members, if the value fits no member of a union."""

    @property
    def speaks_for_itself(self) -> bool:
        """Whether a validator wrote the message."""
        return self.error["type"] not in _ABOUT_THE_TYPE


def find_problems(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """The distinct problems in `data` with their key paths, from the first `MOST_FOUND` errors at most."""
    errors = [details for details in error.errors(include_url=False)[:MOST_FOUND] if not _counts_only_valid(details)]
    findings = [_located(details, model, data) for details in errors]
    return list(dict.fromkeys(_problem(each, model) for each in _settle_unions(findings)))


def _counts_only_valid(error: ErrorDetails) -> bool:
    """Whether a list is called too short only because pydantic does not count its items that have errors."""
    return error["type"] == "too_short" and len(error["input"]) >= error.get("ctx", {})["min_length"]


def _located(error: ErrorDetails, model: type[BaseModel], value: Any) -> _Finding:
    """Separate the keys in pydantic's location from the tags and class names of union members between them."""
    path: KeyPath = ()
    takes, section = [model], []
    branches: tuple[tuple[KeyPath, str], ...] = ()
    for part in error["loc"]:
        if part == "[key]":
            break
        may_be_label = len(takes) > 1 and isinstance(part, str)
        members = [kind for kind in takes if may_be_label and _is_called(kind, part)]
        is_written = part in value if isinstance(value, dict) else isinstance(part, int)
        if members or not (is_written or any(part in _fields(kind) for kind in takes)):
            branches += ((path, str(part)),)
            takes = members or takes
            continue
        path, section = (*path, part), takes
        takes = [inner for kind in takes for inner in _types_at(kind, part)]
        try:
            value = value[part]
        except (LookupError, TypeError):  # the key is missing, or its parent has another shape
            value = None
    return _Finding(path, takes, section, branches, error)


def _settle_unions(findings: list[_Finding], level: int = 0) -> list[_Finding]:
    """Keep only the errors of the union member that was meant, if clear; pydantic reports each member's."""
    settled: list[_Finding] = []
    unions: dict[KeyPath, list[_Finding]] = {}
    for finding in findings:
        if len(finding.branches) > level:
            unions.setdefault(finding.branches[level][0], []).append(finding)
        else:
            settled.append(finding)
    for path, group in unions.items():
        members: dict[str, list[_Finding]] = {}
        for finding in group:
            members.setdefault(finding.branches[level][1], []).append(finding)
        # An error inside the value means that the value has the shape of this member.
        meant = [m for m in members.values() if any(len(f.path) > len(path) or f.speaks_for_itself for f in m)]
        if meant:
            settled += _settle_unions(min(meant, key=len), level + 1)
        else:
            settled.append(replace(group[0], others=tuple(group[1:])))
    return settled


def _problem(finding: _Finding, model: type[BaseModel]) -> Problem:
    path, error, value = finding.path, finding.error, finding.error["input"]
    kind = error["type"]
    if finding.speaks_for_itself:
        return Problem(path, _short(str(error.get("ctx", {}).get("error", error["msg"])), path, value))
    if kind == "missing":
        return Problem(path, "missing: this key is required")
    if kind == "extra_forbidden":
        return Problem(path, _unknown_key(str(path[-1]), finding.section, model))
    if kind in ("union_tag_not_found", "union_tag_invalid"):
        key = error.get("ctx", {})["discriminator"].strip("'")
        tags = [tag for each in finding.takes for literal in _types_at(each, key) for tag in get_args(literal)]
        return _tag_problem((*path, key), tags, value.get(key) if isinstance(value, dict) else None)
    if error["loc"][-1:] == ("[key]",):
        return Problem(path, f"not allowed as a key here: {error['msg']}")
    if value is None and kind in _NO_SECTION:
        return Problem(path, "the section is empty; write its keys below it, or remove the line")
    members = (finding, *finding.others)
    wanted = "; or ".join(dict.fromkeys(_wanted(each.error, each.takes) for each in members))
    hint = _hint([each.error for each in members], value)
    return Problem(path, f"{_short(wanted, path, value)}, found {shown(value, path)}{hint}")


def _wanted(error: ErrorDetails, takes: list[Any]) -> str:
    if error["type"] not in _NO_SECTION:
        return _IN_YAML_WORDS.get(error["type"]) or _NOT_TOLD.sub("", error["msg"])
    models = [fields for kind in takes if (fields := _fields(kind))]
    needed = [key for key in (models or [{}])[0] if all(key in each and each[key].is_required() for each in models)]
    return f"should be a section with {', '.join(needed)}" if needed else "should be a section"


def _short(message: str, path: KeyPath, value: Any) -> str:
    """A message on one line, without the value if it is secret."""
    if is_secret(path) and isinstance(value, str) and value:
        message = message.replace(value, "***")
    message = on_one_line(" ".join(message.split()))
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"


def _tag_problem(path: KeyPath, tags: list[str], tag: Any) -> Problem:
    wanted = f"one of: {', '.join(tags)}"
    if tag is None:
        return Problem(path, f"missing: set it to {wanted}")
    return Problem(path, f"should be {wanted}, found {shown(tag, path)}{_did_you_mean(str(tag), tags)}")


def _did_you_mean(typed: str, known: Iterable[str]) -> str:
    by_spelling = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(typed.lower().replace("-", "_"), by_spelling, n=1)
    return f"; did you mean {by_spelling[close[0]]}?" if close else ""


def _unknown_key(key: str, section: list[Any], model: type[BaseModel]) -> str:
    known = dict.fromkeys(name for kind in section for name in _fields(kind))
    if key == EXTENDS:
        return f"unknown key here; {EXTENDS} belongs at the top of a file"
    if hint := _peer_hint(key, model):
        return f"unknown key; {hint}"
    if close := _did_you_mean(key, known):
        return f"unknown key{close}"
    elsewhere = list(_places_of(key, model))
    if len(elsewhere) == 1:
        return f"unknown key here; did you mean {elsewhere[0]}?"
    return f"unknown key; the keys here are: {', '.join(known)}" if known else "unknown key; no keys are allowed here"


def _peer_hint(key: str, model: type[BaseModel]) -> str:
    """What a key of another tool is called in this config; empty if the key is none, or this config has no such key."""
    peer = BY_NAME.get(key)
    if peer is None or any(path.split(".")[-1] == key for path in peer.ours):
        return ""  # the same key in another section is found by its name
    if not peer.ours:
        return peer.remark
    ours = next((path for path in peer.ours if _has_path(model, path)), None)
    if ours is None:
        return ""
    return f"here it is {ours}" + f" ({peer.remark})" * bool(peer.remark)


def _has_path(model: type[BaseModel], path: str) -> bool:
    """Whether a config has a key at a path such as `stages.N.mix`."""
    kinds: list[Any] = [model]
    for part in path.split("."):
        kinds = [inner for kind in kinds for inner in _types_at(kind, 0 if part in ("N", "NAME") else part)]
    return bool(kinds)


def _hint(errors: Iterable[ErrorDetails], value: Any) -> str:
    """A hint to quote a value that YAML did not read as text, or the closest choice for a misspelt one."""
    choices = [name for each in errors for name in re.findall(r"'([^']*)'", each.get("ctx", {}).get("expected", ""))]
    wants_text = any(each["type"] == "string_type" for each in errors) and isinstance(value, bool | int | float | date)
    wants_switch = isinstance(value, bool) and {"yes", "no", "on", "off", "true", "false"}.intersection(choices)
    if wants_text or wants_switch:
        return "; put it in quotes"
    return _did_you_mean(value, choices) if isinstance(value, str) else ""


def _types(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation allows besides None: the members of its unions, unwrapped."""
    if hasattr(annotation, "__value__"):  # of a TypeAliasType
        yield from _types(annotation.__value__)
    elif get_origin(annotation) is Annotated:
        yield from _types(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _types(member)
    elif annotation is not types.NoneType:
        yield annotation


def _fields(kind: Any) -> dict[str, FieldInfo]:
    """A model's fields by their keys in a file; empty if `kind` is not a model."""
    is_model = isinstance(kind, type) and issubclass(kind, BaseModel)
    return {field.alias or name: field for name, field in kind.model_fields.items()} if is_model else {}


def _types_at(kind: Any, key: str | int) -> list[Any]:
    """Types allowed at a key or index of a value of this type."""
    if key in (fields := _fields(kind)):
        return list(_types(fields[key].annotation))
    inner, origin = get_args(kind), get_origin(kind)
    if not inner or origin is Literal:
        return []
    if origin is tuple and isinstance(key, int) and Ellipsis not in inner:
        return list(_types(inner[key])) if key < len(inner) else []
    return list(_types(inner[-1] if origin is dict else inner[0]))


def _is_called(kind: Any, label: str | int) -> bool:
    """Whether `label` is pydantic's name for this union member: its class name or its tag."""
    return getattr(kind, "__name__", None) == label or any(
        get_origin(field.annotation) is Literal and label in get_args(field.annotation)
        for field in _fields(kind).values()
    )


def _places_of(key: str, model: type[BaseModel]) -> Iterator[str]:
    """Yield the paths in the config that end in this key, such as `stages.N.mix`; visits each section once."""
    waiting: list[tuple[str, Any]] = [("", model)]
    seen = set()
    while waiting:
        place, kind = waiting.pop(0)
        if get_origin(kind) in (dict, list, tuple):
            step = "NAME" if get_origin(kind) is dict else "N"
            waiting += [(f"{place}.{step}", inner) for inner in _types_at(kind, 0)]
        if kind in seen:
            continue
        seen.add(kind)
        for name, field in _fields(kind).items():
            here = f"{place}.{name}".lstrip(".")
            if name == key:
                yield here
            waiting += [(here, inner) for inner in _types(field.annotation)]
