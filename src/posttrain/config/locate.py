"""Follows a pydantic error location through the schema, to the key path that the user typed.

Pydantic puts the tag or the name of a union's member between the keys. The schema tells which they are: a tag
may be spelled like a key.
"""

from dataclasses import dataclass

from posttrain.config.keys import KeyPath
from posttrain.config.schema import Node, alternatives, is_section, ref_name, resolve, tags


@dataclass(frozen=True)
class Branch:
    """A member of a union, as named by pydantic."""

    path: KeyPath
    member: str
    union: Node


@dataclass(frozen=True)
class Location:
    """A key path, what may stand there, what may stand one level up, and the union members on the way."""

    path: KeyPath
    nodes: list[Node]
    section: list[Node]
    branches: tuple[Branch, ...]


def locate(loc: tuple[str | int, ...], root: Node) -> Location:
    """Separate keys from tags and member names."""
    here = Location((), [root], [], ())
    for part in loc:
        if part == "[key]":
            break
        here = _into_union(here, part, root) or _into_key(here, part, root)
    return here


def _opened(nodes: list[Node], root: Node) -> list[Node]:
    """Nodes without references, and without a union where null is the only other member."""
    opened = []
    for node in nodes:
        members = alternatives(node)
        while len(members) == 1 and (node is not members[0] or "$ref" in node):
            node = resolve(members[0], root)
            members = alternatives(node)
        opened.append(node)
    return opened


def _into_union(here: Location, part: str | int, root: Node) -> Location | None:
    for node in _opened(here.nodes, root):
        if (tagged := tags(node)) and str(part) in tagged[1]:
            return Location(here.path, [tagged[1][str(part)]], here.section, here.branches)
        members = alternatives(node)
        if len(members) > 1 and not tagged:
            named = [member for member in members if ref_name(member.get("$ref", "")) == part]
            branches = (*here.branches, Branch(here.path, str(part), node))
            return Location(here.path, named or members, here.section, branches)
    return None


def _into_key(here: Location, part: str | int, root: Node) -> Location:
    section = _opened(here.nodes, root)
    found = []
    for node in section:
        values = node.get("additionalProperties")
        if is_section(node) and part in node.get("properties", {}):
            found.append(node["properties"][part])
        elif isinstance(part, int):
            items = node.get("prefixItems", [])
            found += items[part : part + 1] or ([node["items"]] if isinstance(node.get("items"), dict) else [])
        elif isinstance(values, dict):
            found.append(values)
    return Location((*here.path, part), found, section, here.branches)
