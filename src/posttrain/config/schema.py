"""The JSON Schema of a config: exported for editors, and read here for problems and the reference page."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

Node = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _WithFactoryDefaults(GenerateJsonSchema):
    """Writes down defaults that a function makes, which pydantic leaves out."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        if "default_factory" in schema and not schema.get("default_factory_takes_data"):
            return schema["default_factory"]()  # type: ignore[call-arg]
        return super().get_default_value(schema)


def json_schema(model: type[BaseModel]) -> str:
    """The schema as JSON text, for editors and other programs."""
    return json.dumps({"$schema": DIALECT, **schema_of(model)}, indent=2, ensure_ascii=False) + "\n"


def schema_of(model: type[BaseModel]) -> Node:
    """The schema as a dict. Titles that only repeat the key are left out."""
    root = model.model_json_schema(schema_generator=_WithFactoryDefaults)
    for section in (root, *root.get("$defs", {}).values()):
        for prop in section.get("properties", {}).values():
            prop.pop("title", None)
    return {"title": model.__name__, **root}


def resolve(node: Node, root: Node) -> Node:
    """Follow a reference to the definition it names."""
    while "$ref" in node:
        node = root["$defs"][ref_name(node["$ref"])]
    return node


def ref_name(ref: str) -> str:
    """The definition's name in `#/$defs/Name`."""
    return ref.rsplit("/", 1)[-1]


def is_section(node: Node) -> bool:
    """Whether a resolved node is a model: an object with keys of its own."""
    return node.get("type") == "object" and ("properties" in node or node.get("additionalProperties") is False)


def alternatives(node: Node) -> list[Node]:
    """What a value may be, besides null: the members of a union, or the node alone."""
    members = node.get("anyOf") or node.get("oneOf")
    return [member for member in members if member.get("type") != "null"] if members else [node]


def tags(node: Node) -> tuple[str, dict[str, Node]] | None:
    """The key that tells the members of a union apart, and the member of each of its values; or None."""
    discriminator = node.get("discriminator")
    if not discriminator:
        return None
    as_declared = [member.get("$ref") for member in node["oneOf"]]
    mapping = sorted(discriminator["mapping"].items(), key=lambda item: as_declared.index(item[1]))
    return discriminator["propertyName"], {tag: {"$ref": ref} for tag, ref in mapping}


@dataclass
class Section:
    """One model of a config, with where it stands: `stages.N`, `graders.NAME (type: math)`."""

    name: str
    node: Node
    places: list[str] = field(default_factory=list)


def sections(root: Node) -> list[Section]:
    """Every model in the config, the root first, in the order in which a reader meets them."""
    found: dict[str, Section] = {}
    top = ref_name(root["$ref"]) if "$ref" in root else ""
    waiting = [("", top, resolve(root, root))]
    while waiting:
        place, name, node = waiting.pop(0)
        section = found.setdefault(name, Section(name, node))
        section.places.append(place)
        if len(section.places) > 1:
            continue  # its own sections are known from the first place, and it may hold itself
        for key, prop in node.get("properties", {}).items():
            waiting.extend(_sections_in(prop, f"{place}.{key}".lstrip("."), root))
    return list(found.values())


def _sections_in(node: Node, place: str, root: Node) -> Iterator[tuple[str, str, Node]]:
    """Models that a value may be or hold, each with its place and name."""
    if tagged := tags(node):
        key, members = tagged
        values: dict[str, list[str]] = {}
        for tag, member in members.items():
            values.setdefault(ref_name(member["$ref"]), []).append(tag)
        for name, its_tags in values.items():
            yield f"{place} ({key}: {' or '.join(its_tags)})", name, root["$defs"][name]
        return
    members = alternatives(node)
    if len(members) > 1 or members != [node]:
        for member in members:
            yield from _sections_in(member, place, root)
        return
    target = resolve(node, root)
    if "$ref" in node and is_section(target):
        yield place, ref_name(node["$ref"]), target
    for key, step in (("items", "N"), ("additionalProperties", "NAME")):
        if isinstance(target.get(key), dict):
            yield from _sections_in(target[key], f"{place}.{step}", root)
    for index, item in enumerate(target.get("prefixItems", [])):
        yield from _sections_in(item, f"{place}.{index}", root)
