"""Renders the reference page of a config in Markdown, from the sentences under its fields."""

import json
import re
from typing import Any, get_args

from pydantic import BaseModel

from toolkit.core.config.schema import Node, Section, resolve, schema_of, sections
from toolkit.core.config.typewords import words


def render_reference(title: str, model: type[BaseModel]) -> str:
    """One heading and one table for each section, in the order in which a reader meets them."""
    root = schema_of(model)
    found = sections(root)
    headings = _headings(title, found)
    pages = []
    for section in found:
        level = "##" if section.places[0] else "#"
        lines = [
            f"{level} {headings[section.name]}",
            "",
            *_intro(section),
            *_table(section.node, root, headings),
        ]
        pages.append("\n".join(lines))
    return "\n\n".join(pages) + "\n"


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


def _table(node: Node, root: Node, headings: dict[str, str]) -> list[str]:
    def link(name: str, label: str) -> str:
        return f"[{label or 'section'}](#{_anchor(headings[name])})"

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
    return f"`{text}`"


def _anchor(heading: str) -> str:
    """The link target that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
