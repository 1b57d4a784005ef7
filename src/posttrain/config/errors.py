"""Turns pydantic's validation errors into one line each, for the person who wrote the file."""

import difflib
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from posttrain.base.text import on_one_line
from posttrain.config.keys import VERY_LARGE, KeyPath, Problem, is_secret, shown
from posttrain.config.locate import Branch, locate
from posttrain.config.schema import Node, alternatives, is_section, resolve, schema_of, sections, tags
from posttrain.config.type_words import words

_ABOUT_THE_TYPE = {*get_args(ErrorType), "path_type", "union"} - {"value_error", "assertion_error"}
_READ_AS_BOOL = {"yes", "no", "on", "off", "true", "false"}
MOST_FOUND = 200
"""How many of pydantic's errors are told; thousands would take minutes, and nobody reads them."""

_LONGEST_MESSAGE = 500
_TOO_LARGE = "int_parsing_size"
_NO_TAG = ("union_tag_not_found", "union_tag_invalid")


@dataclass(frozen=True)
class _Finding:
    """One pydantic error, at the key path that the user typed."""

    kind: str
    path: KeyPath
    nodes: list[Node]
    """What may stand there."""

    section: list[Node]
    """What may stand one level up."""

    branches: tuple[Branch, ...]
    """Members of unions in which pydantic met the error, from the outside in."""

    error: ErrorDetails

    @property
    def speaks_for_itself(self) -> bool:
        """Whether a validator wrote the message."""
        return self.kind not in _ABOUT_THE_TYPE


def find_problems(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Every problem once, with the key path it is about; of very many the first `MOST_FOUND`."""
    root = schema_of(model)
    findings = []
    for details in error.errors(include_url=False)[:MOST_FOUND]:
        found = locate(details["loc"], root)
        findings.append(_Finding(details["type"], found.path, found.nodes, found.section, found.branches, details))
    return list(dict.fromkeys(_problem(finding, root) for finding in _settle_unions(findings)))


def _settle_unions(findings: list[_Finding], level: int = 0) -> list[_Finding]:
    """Pydantic reports a failed union once for each member; keep the member that was meant, if clear."""
    settled: list[_Finding] = []
    unions: dict[KeyPath, list[_Finding]] = {}
    for finding in findings:
        if len(finding.branches) > level:
            unions.setdefault(finding.branches[level].path, []).append(finding)
        else:
            settled.append(finding)
    for path, group in unions.items():
        members: dict[str, list[_Finding]] = {}
        for finding in group:
            members.setdefault(finding.branches[level].member, []).append(finding)
        # An error inside the value means that its shape was right for this member.
        meant = [m for m in members.values() if any(len(f.path) > len(path) or f.speaks_for_itself for f in m)]
        if meant:
            settled += _settle_unions(min(meant, key=len), level + 1)
        else:
            settled.append(replace(group[0], nodes=[group[0].branches[level].union], kind="union"))
    return settled


def _problem(finding: _Finding, root: Node) -> Problem:
    path, value = finding.path, finding.error["input"]
    if finding.speaks_for_itself:
        return Problem(path, _own_message(finding))
    if finding.kind == "missing":
        return Problem(path, f"missing: give it as {_wanted(finding.nodes, root)}")
    if finding.kind == "extra_forbidden":
        return Problem(path, _unknown_key(str(path[-1]), finding.section, root))
    if finding.kind in _NO_TAG and (tagged := _first_tags(finding.nodes)):
        return _tag_problem(path, *tagged, value)
    if finding.kind == "finite_number":
        return Problem(path, f"wanted a finite number, found {shown(value, path)}")
    if finding.error["loc"][-1:] == ("[key]",):
        return Problem(path, f"not allowed as a key here: {finding.error['msg']}")
    if value is None and any(is_section(resolve(node, root)) for node in finding.nodes):
        needed = any(path[-1] in node.get("required", []) for node in finding.section) if path else True
        way_out = "" if needed else ", or take the line out"
        return Problem(path, f"the section is empty; write its keys below it{way_out}")
    wanted = _wanted(finding.nodes, root) or finding.error["msg"]
    found = shown(value, path)
    hint = "; 64 bits cannot hold it" if finding.kind == _TOO_LARGE and found != VERY_LARGE else _hint(wanted, value)
    return Problem(path, f"wanted {wanted}, found {found}{hint}")


def _own_message(finding: _Finding) -> str:
    """A validator's words, without pydantic's prefix, and without the value if it is secret."""
    message = str(finding.error.get("ctx", {}).get("error", finding.error["msg"]))
    value = finding.error["input"]
    if is_secret(finding.path) and isinstance(value, str) and value:
        message = message.replace(value, "***")
    message = on_one_line(" ".join(message.split()))
    return message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…"


def _wanted(nodes: list[Node], root: Node) -> str:
    return "; or ".join(dict.fromkeys(_words(node, root) for node in nodes))


def _words(node: Node, root: Node) -> str:
    if tagged := tags(node):
        return f"a section with {tagged[0]}: {' | '.join(tagged[1])}"

    def section(name: str, label: str) -> str:
        required = root["$defs"][name].get("required", []) if name else []
        return f"a section with {label or ', '.join(required)}" if label or required else "a section"

    return words(node, root, section)


def _first_tags(nodes: list[Node]) -> tuple[str, dict[str, Node]] | None:
    members = [member for node in nodes for member in (node, *alternatives(node))]
    return next(filter(None, map(tags, members)), None)


def _tag_problem(path: KeyPath, key: str, members: dict[str, Node], value: Any) -> Problem:
    choices = f"one of: {', '.join(members)}"
    tag = value.get(key) if isinstance(value, dict) else getattr(value, key, None)
    if tag is None:
        return Problem((*path, key), f"missing: give it as {choices}")
    return Problem(
        (*path, key), f"wanted {choices}, found {shown(tag, (*path, key))}{_did_you_mean(str(tag), members)}"
    )


def _did_you_mean(typed: str, known: Any) -> str:
    by_spelling = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(typed.lower().replace("-", "_"), by_spelling, n=1)
    return f"; did you mean {by_spelling[close[0]]}?" if close else ""


def _unknown_key(key: str, section: list[Node], root: Node) -> str:
    known = list(dict.fromkeys(name for node in section for name in node.get("properties", {})))
    if close := _did_you_mean(key, known):
        return f"unknown key{close}"
    elsewhere = [
        f"{other.places[0]}.{key}".lstrip(".") for other in sections(root) if key in other.node.get("properties", {})
    ]
    if len(elsewhere) == 1:
        return f"unknown key here; did you mean {elsewhere[0]}?"
    return f"unknown key; the keys here are: {', '.join(known)}" if known else "unknown key; none is taken here"


def _hint(wanted: str, value: Any) -> str:
    """What to do about a value that YAML did not take for the text it was meant as."""
    if wanted.removeprefix("non-empty ").startswith("text") and isinstance(value, bool | int | float | date):
        return "; put it in quotes"
    choices = wanted.removeprefix("one of: ").split(", ") if wanted.startswith("one of: ") else []
    if isinstance(value, bool) and _READ_AS_BOOL.intersection(choices):
        return "; put it in quotes"
    return _did_you_mean(value, choices) if isinstance(value, str) else ""
