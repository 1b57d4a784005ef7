"""Renders the reference page of a config in Markdown, from the sentences under its fields."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from posttrain.config.schema import Node, Section, resolve, schema_of, sections
from posttrain.config.type_words import words

Link = Callable[[str, str], str]
"""From the name of a model, and its tag if it has one, to how a table calls it."""


def render_reference(
    title: str, model: type[BaseModel], *, page: str = "", elsewhere: Mapping[str, str] | None = None
) -> str:
    """One heading and one table for each section, in the order in which a reader meets them.

    Args:
        page: what comes before on the same page; a heading that is there already gets another link target.
        elsewhere: places whose sections are described elsewhere, and what a table says in their stead.
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
    """The table of one model alone, whose inner sections are told by the keys that they want."""
    root = schema_of(model)
    node = resolve(root, root)

    def link(name: str, label: str) -> str:
        required = root["$defs"][name].get("required", [])
        return f"a section with {', '.join(f'`{key}`' for key in required)}" if required else "a section"

    properties = {key: prop for key, prop in node.get("properties", {}).items() if key not in without}
    return "\n".join(_table({**node, "properties": properties}, root, link))


def undocumented_fields(model: type[BaseModel]) -> list[str]:
    """`Class.field` for every field, at any depth, that has no sentence."""
    return [
        f"{each.__name__}.{name}"
        for each in _models_in(model, {})
        for name, field in each.model_fields.items()
        if not (field.description or "").strip()
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
    """A section is called by the place where it stands first; models that share a place add their names."""
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
    """Pydantic leaves a field's sentence out where the section it refers to begins with the same words."""
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
    """The link target that GitHub makes of a heading; those of equal headings are numbered."""
    target = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
    equal = sum(_anchor(other) == target for other in above)
    return f"{target}-{equal}" if equal else target
