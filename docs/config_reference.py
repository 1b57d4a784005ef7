"""Renders a config's reference page in Markdown, from the sentences under its fields."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import BaseModel

from posttrain.config.schema import Node, schema_of, sentences

_FORMATS = {
    "path": "path",
    "file-path": "path of a file",
    "directory-path": "path of a folder",
    "date": "date",
    "date-time": "date and time",
    "time": "time",
    "duration": "duration",
    "uri": "URL",
}
_BOUNDS = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))

Link = Callable[[str, str], str]
"""From the name of a model, and its tag if it has one, to what a table shows for it."""


@dataclass
class Section:
    """One model of a config, with the places where it occurs: `stages.N`, `graders.NAME (type: math)`."""

    name: str
    node: Node
    places: list[str] = field(default_factory=list)


def render_reference(
    title: str, model: type[BaseModel], *, page: str = "", elsewhere: Mapping[str, str] | None = None
) -> str:
    """One heading and one table for each section, in the order a reader meets them.

    Args:
        page: what comes before on the same page; a heading that already exists there gets a different link target.
        elsewhere: places whose sections are described elsewhere, with what a table shows instead.
    """
    root = schema_of(model)
    elsewhere = elsewhere or {}
    everything = sections(root)
    found = [here for section in everything if (here := _without_places(section, elsewhere)).places]
    headings = _headings(title, found)
    above = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
    there = {section.name: link for section in everything for link in _links(section, elsewhere)}

    def link(name: str, label: str) -> str:
        if name not in headings:
            return there[name]
        return f"[{label or 'section'}](#{_anchor(headings[name], above)})"

    pages = []
    for section in found:
        level = "##" if section.places[0] else "#"
        lines = [f"{level} {headings[section.name]}", "", *_intro(section), *_table(section.node, root, link)]
        pages.append("\n".join(lines))
    return "\n\n".join(pages) + "\n"


def render_keys(model: type[BaseModel], *, without: Collection[str] = ()) -> str:
    """The table of one model alone; its inner sections are described by their required keys."""
    root = schema_of(model)
    node = resolve(root, root)

    def link(name: str, label: str) -> str:
        required = root["$defs"][name].get("required", [])
        return f"a section with {', '.join(f'`{key}`' for key in required)}" if required else "a section"

    properties = {key: prop for key, prop in node.get("properties", {}).items() if key not in without}
    return "\n".join(_table({**node, "properties": properties}, root, link))


def undocumented_fields(model: type[BaseModel]) -> list[str]:
    """`Class.field` for every field without a sentence, at any depth."""
    return [
        f"{each.__name__}.{name}"
        for each in _models_in(model, {})
        for name in each.model_fields
        if not sentences(each).get(name, "").strip()
    ]


def _models_in(annotation: Any, seen: dict[type[BaseModel], None]) -> dict[type[BaseModel], None]:
    """The models that an annotation names, and those that their fields name, in order."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
        seen[annotation] = None
        for field in annotation.model_fields.values():
            _models_in(field.annotation, seen)
    for inner in (*get_args(annotation), getattr(annotation, "__value__", None)):
        if inner is not None:
            _models_in(inner, seen)
    return seen


def _without_places(section: Section, elsewhere: Mapping[str, str]) -> Section:
    places = [place for place in section.places if not place.startswith(tuple(elsewhere))]
    return Section(section.name, section.node, places)


def _links(section: Section, elsewhere: Mapping[str, str]) -> list[str]:
    return [link for start, link in elsewhere.items() if section.places[0].startswith(start)]


def _headings(title: str, found: list[Section]) -> dict[str, str]:
    """Name each section after its first place; models that share a place add their own names."""
    places = [section.places[0] for section in found]
    return {
        section.name: (place if places.count(place) == 1 else f"{place} ({section.name})") if place else title
        for section, place in zip(found, places, strict=True)
    }


def _intro(section: Section) -> list[str]:
    lines = [" ".join(section.node["description"].split()), ""] if section.node.get("description") else []
    also = [f"`{place or 'the whole file'}`" for place in dict.fromkeys(section.places[1:])]
    return [*lines, f"The same keys at {', '.join(also)}.", ""] if also else lines


def _table(node: Node, root: Node, link: Link) -> list[str]:
    rows = [
        [
            f"`{key}`",
            words(prop, root, link),
            _default(key, prop, node),
            _sentence(prop, root),
        ]
        for key, prop in node.get("properties", {}).items()
    ]
    if not rows:
        return ["It has no keys."]
    return ["| key | type | default | meaning |", "|---|---|---|---|", *(_row(cells) for cells in rows)]


def _sentence(prop: Node, root: Node) -> str:
    """Pydantic leaves out a field's sentence if the section it refers to begins with the same words."""
    text = prop.get("description") or (resolve(prop, root).get("description", "") if "$ref" in prop else "")
    return " ".join(text.split())


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(key: str, prop: Node, section: Node) -> str:
    if key in section.get("required", []):
        return "required"
    if "default" not in prop:
        return "from other keys"
    value: Any = prop["default"]
    if isinstance(value, dict) and value:
        return "see there"
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return "several lines" if "\n" in text else f"`{text}`"


def _anchor(heading: str, above: Collection[str] = ()) -> str:
    """The link target that GitHub gives a heading; equal headings are numbered."""
    target = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    equal = sum(_anchor(other) == target for other in above)
    return f"{target}-{equal}" if equal else target


def words(node: Node, root: Node, link: Link) -> str:
    """Name the values that a node takes: `integer ≥ 1`, `one of: a, b`, `list of text`."""

    def inner(child: Node) -> str:
        return words(child, root, link)

    if tagged := tags(node, root):
        key, members = tagged
        return _either([link(ref, f"{key}: {tag}") for tag, ref in members], False)
    members = alternatives(node)
    if members != [node]:
        nullable = len(members) < len(node.get("anyOf") or node["oneOf"])
        return _either([inner(member) for member in members], nullable)
    target = resolve(node, root)
    if is_section(target):
        return link(ref_name(node.get("$ref", "")), "")
    if "enum" in target or "const" in target:
        return _choices(target.get("enum", [target.get("const")]))
    if target.get("type") == "array":
        return _list(target, inner)
    if target.get("type") == "object":
        values = target.get("additionalProperties")
        kind = _sized("mapping", target, "Properties", "keys")
        return f"{kind} of names to {inner(values)}" if isinstance(values, dict) else kind
    return _scalar(target)


def _either(parts: list[str], nullable: bool) -> str:
    parts = list(dict.fromkeys([*parts, "null"] if nullable else parts))
    between = "; or " if any("," in part or " and " in part for part in parts) else " or "
    return between.join(parts)


def _choices(values: list[object]) -> str:
    shown = ["null" if v is None else str(v).lower() if isinstance(v, bool) else str(v) for v in values]
    return f"one of: {', '.join(shown)}" if len(shown) > 1 else f"`{shown[0]}`"


def _list(node: Node, inner: Callable[[Node], str]) -> str:
    if "prefixItems" in node:
        return f"list of exactly: {', '.join(inner(item) for item in node['prefixItems'])}"
    kind = _sized("list", node, "Items", "items")
    if not node.get("items"):
        return kind
    item = inner(node["items"])
    return f"{kind} of {'sections' + item.removeprefix('a section') if item.startswith('a section') else item}"


def _scalar(node: Node) -> str:
    kind = node.get("type")
    if kind in ("integer", "number"):
        bounds = [f"{sign} {node[key]}" for key, sign in _BOUNDS if key in node]
        if "multipleOf" in node:
            bounds.append(f"a multiple of {node['multipleOf']}")
        return " ".join([kind, " and ".join(bounds)]).rstrip()
    if kind == "string":
        text = _FORMATS.get(node.get("format", ""), "text")
        if "pattern" in node:
            text += f" matching `{node['pattern']}`"
        return _sized(text, node, "Length", "characters")
    return {"boolean": "true or false", "null": "null"}.get(str(kind), "anything")


def _sized(kind: str, node: Node, what: str, unit: str) -> str:
    low, high = node.get(f"min{what}"), node.get(f"max{what}")
    if low == 1 and high is None:
        return f"non-empty {kind}"
    limits = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (high is not None)
    return f"{kind} ({' and '.join(limits)} {unit})" if limits else kind


def resolve(node: Node, root: Node) -> Node:
    """Follow a reference to the definition it names."""
    while "$ref" in node:
        node = root["$defs"][ref_name(node["$ref"])]
    return node


def ref_name(ref: str) -> str:
    """The definition's name in `#/$defs/Name`."""
    return ref.rsplit("/", 1)[-1]


def is_section(node: Node) -> bool:
    """Whether a resolved node is a model: an object with its own keys."""
    return node.get("type") == "object" and ("properties" in node or node.get("additionalProperties") is False)


def alternatives(node: Node) -> list[Node]:
    """What a value may be besides null: the members of a union, or the node alone."""
    members = node.get("anyOf") or node.get("oneOf")
    return [member for member in members if member.get("type") != "null"] if members else [node]


def tags(node: Node, root: Node) -> tuple[str, list[tuple[str, str]]] | None:
    """The key that distinguishes the members of a union, and each of its values with the name of a member; or None.

    If a value stands for several members, the keys that only one of them requires are added: `graded, path`.
    """
    discriminator = node.get("discriminator")
    if not discriminator:
        return None
    as_declared = [ref for member in node["oneOf"] for ref in _refs(member)]
    found = []
    for tag, member in discriminator["mapping"].items():
        names = [ref_name(ref) for ref in _refs({"$ref": member} if isinstance(member, str) else member)]
        needs = {name: root["$defs"][name].get("required", []) for name in names}
        for name in names:
            own = [key for key in needs[name] if sum(key in each for each in needs.values()) == 1]
            found.append((", ".join([tag, *own]) if len(names) > 1 else tag, name))
    order = [ref_name(ref) for ref in as_declared]
    return discriminator["propertyName"], sorted(found, key=lambda each: order.index(each[1]))


def _refs(node: Node) -> list[str]:
    """What a node refers to, or each member of a union."""
    return [node["$ref"]] if "$ref" in node else [ref for member in node["oneOf"] for ref in _refs(member)]


def sections(root: Node) -> list[Section]:
    """Every model in the config, the root first, in the order a reader meets them."""
    found: dict[str, Section] = {}
    top = ref_name(root["$ref"]) if "$ref" in root else ""
    waiting = [("", top, resolve(root, root))]
    while waiting:
        place, name, node = waiting.pop(0)
        section = found.setdefault(name, Section(name, node))
        section.places.append(place)
        if len(section.places) > 1:
            continue  # its inner sections are already known, and it may contain itself
        for key, prop in node.get("properties", {}).items():
            waiting.extend(_sections_in(prop, f"{place}.{key}".lstrip("."), root))
    return list(found.values())


def _sections_in(node: Node, place: str, root: Node) -> Iterator[tuple[str, str, Node]]:
    """Models that a value may be or contain, each with its place and name."""
    if tagged := tags(node, root):
        key, members = tagged
        values: dict[str, list[str]] = {}
        for tag, name in members:
            values.setdefault(name, []).append(tag)
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
