"""Grader `xml_schema`: check that the answer is XML with the right root and the required children and attributes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationError, model_validator

from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.base import Example, Score
from posttrain.dataserver.graders.text.completions import GradeInput, column_value, visible
from posttrain.dataserver.graders.text.fenced import FencedTextGrader
from posttrain.errors import DataError

Name = Annotated[str, Field(pattern=r"^\S+$")]


@dataclass
class Element:
    """One element; names are `{namespace}name` where they have a namespace."""

    name: str
    attributes: frozenset[str]
    is_empty: bool
    """No attributes, no elements and no visible text."""


@dataclass
class Outline:
    """Receives the parser's events. Nothing below the root's children is kept, so nesting costs nothing."""

    root: Element | None = None
    children: list[Element] = field(default_factory=list)
    depth: int = 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """Handle the start of an element."""
        self._fill()
        element = Element(name, frozenset(attributes), is_empty=not attributes)
        if self.root is None:
            self.root = element
        elif self.depth == 1:
            self.children.append(element)
        self.depth += 1

    def end(self, name: str) -> None:
        """Handle the end of an element."""
        self.depth -= 1

    def data(self, text: str) -> None:
        """Handle text inside the innermost open element."""
        if visible(text):
            self._fill()

    def comment(self, text: str) -> None:
        """Handle a comment: it is ignored inside the root element; DataError outside it."""
        if not self.depth:
            raise DataError("a comment or processing instruction is outside the root element")

    def pi(self, target: str, data: str | None = None) -> None:
        """Handle a processing instruction, in the same way as a comment."""
        self.comment(target)

    def _fill(self) -> None:
        if self.root is not None:
            self.root.is_empty = False
        if self.depth > 1:
            self.children[-1].is_empty = False


def outline(text: str) -> Outline:
    """Parse XML; the returned outline always has a root.

    Raises:
        DataError: the text is not well-formed, or it has a document type, which could define entities that expand
            without bound or refer to files, or a comment or processing instruction before or after the element.
    """
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import DefusedXMLParser, ParseError

    found = Outline()
    parser = DefusedXMLParser(target=found, forbid_dtd=True)
    try:
        parser.feed(text.strip())
        parser.close()
    except DefusedXmlException:
        raise DataError("document types and entities are not allowed") from None
    except UnicodeEncodeError:
        raise DataError("a lone surrogate is not valid in XML") from None
    except ParseError as error:
        raise DataError(f"not XML: {error}") from None
    return found


class XmlShape(StrictModel):
    """What an XML text must contain. A name in a namespace is written `{namespace}name`."""

    root: Name
    """Name of the outermost element."""

    required_children: tuple[Name, ...] = ()
    """Elements that must be direct children of the root, each at least once and in any order."""

    required_attributes: tuple[Name, ...] = ()
    """Attributes that the root must have."""

    allow_empty: bool = False
    """Whether the root and the required children may be empty: no text, no elements, no attributes."""


_NOTE = {"inline": {"root": "note", "required_children": ["to", "body"], "required_attributes": ["id"]}}
_PARTIAL = {**_NOTE, "partial": 0.6}
_BOMB = '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;">]><answer>&y;</answer>'


class XmlSchema(FencedTextGrader):
    """1 if the whole answer is one XML element of the required shape; else 0, or part of it.

    Document types and custom entities are rejected, so nothing is expanded and nothing is fetched. Only an XML
    declaration may precede the element; comments are allowed only inside it.
    """

    type: Literal["xml_schema"] = "xml_schema"

    inline: XmlShape | None = None
    """The shape for all rows; give this or `column`."""

    column: str | None = Field(default=None, min_length=1)
    """The column of the data set that holds each row's shape, as an object or as JSON text, with the keys of `inline`;
    `a.b` is key b of the object in column a."""

    partial: float = Field(default=0.0, ge=0, lt=1)
    """The most that XML with the right root can earn while something is missing: this times the share of the required
    children and attributes that are present."""

    libraries: ClassVar[tuple[str, ...]] = ("defusedxml",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example('<note id="1"><to>Ann</to><body>Hi</body></note>', 1.0, params=_NOTE),
        Example('<note id="1"><body>Hi</body><to>Ann</to><cc>Bob</cc></note>\n', 1.0, params=_NOTE, note="extra child"),
        Example('<memo id="1"><to>Ann</to><body>Hi</body></memo>', 0.0, params=_PARTIAL, note="a wrong root"),
        Example('<note id="1"><to>Ann</to></note>', 0.0, params=_NOTE, note="a child is missing"),
        Example('<note id="1"><to>Ann</to></note>', 0.4, params=_PARTIAL, note="two of three: 0.6 × 2/3"),
        Example('<note id="1"><to/><body/></note>', 0.0, params=_NOTE, note="empty children count as missing"),
        Example('<note id="1"><x><to>A</to><body>B</body></x></note>', 0.0, params=_NOTE, note="nested too deep"),
        Example("<answer>4</answer>", 1.0, params={"inline": {"root": "answer"}}),
        Example("<answer> </answer>", 0.0, params={"inline": {"root": "answer"}}),
        Example("<answer/>", 1.0, params={"inline": {"root": "answer", "allow_empty": True}}),
        Example("<answer>4", 0.0, params={"inline": {"root": "answer"}}),
        Example("<answer>\u200b</answer>", 0.0, params={"inline": {"root": "answer"}}, note="no visible text"),
        Example("<answer>&#8203;</answer>", 0.0, params={"inline": {"root": "answer"}}),
        Example("It is <answer>4</answer>", 0.0, params={"inline": {"root": "answer"}}, note="text around it"),
        Example("<!-- It is --><answer>4</answer>", 0.0, params={"inline": {"root": "answer"}}, note="or a comment"),
        Example("<?It is?><answer>4</answer>", 0.0, params={"inline": {"root": "answer"}}),
        Example("<answer>4</answer><!-- sure -->", 0.0, params={"inline": {"root": "answer"}}),
        Example(
            "<answer>4<!-- sure --></answer>", 1.0, params={"inline": {"root": "answer"}}, note="inside, it is allowed"
        ),
        Example('<?xml version="1.0"?><answer>4</answer>', 1.0, params={"inline": {"root": "answer"}}),
        Example("<answer>4</answer><answer>5</answer>", 0.0, params={"inline": {"root": "answer"}}),
        Example(_BOMB, 0.0, params={"inline": {"root": "answer"}}, note="entities that expand"),
        Example("<answer>" * 100_000, 0.0, params={"inline": {"root": "answer"}}, note="deep nesting is harmless"),
        Example("```xml\n<answer>4</answer>\n```", 0.0, params={"inline": {"root": "answer"}}),
        Example("```xml\n<answer>4</answer>\n```", 0.9, params={"inline": {"root": "answer"}, "fenced_score": 0.9}),
        Example("<a>4</a>", 1.0, params={"column": "meta.shape"}, record={"meta": {"shape": '{"root": "a"}'}}),
        Example("", 0.0, params=_NOTE),
    )

    @model_validator(mode="after")
    def _one_shape(self) -> "XmlSchema":
        if (self.inline is None) == (self.column is None):
            raise ValueError("give the shape as inline, or the name of the column that contains it, but not both")
        return self

    def check_row(self, item: GradeInput) -> None:
        """With `column`, raise DataError unless the row has a valid shape."""
        self._shape(item)

    def score_bare(self, text: str, item: GradeInput) -> Score:
        """1, a share of `partial`, or 0."""
        shape = self._shape(item)
        try:
            found = outline(text)
        except DataError as error:
            return Score(0.0, str(error))
        root = found.root
        if root is None or root.name != shape.root:
            return Score(0.0, f"the root is {root.name[:100]}" if root else "there is no root element")
        if root.is_empty and not shape.allow_empty:
            return Score(0.0, "empty")
        missing = _missing(shape, root, found)
        if not missing:
            return Score(1.0)
        wanted = len(set(shape.required_children)) + len(set(shape.required_attributes))
        return Score(self.partial * (1 - len(missing) / wanted), f"missing or empty: {', '.join(missing)}")

    def _shape(self, item: GradeInput) -> XmlShape:
        if self.column is None:
            assert self.inline is not None
            return self.inline
        shape = column_value(item.record, self.column)
        try:
            return XmlShape.model_validate(json.loads(shape) if isinstance(shape, str) else shape)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, (self.column, *problem["loc"])))
            raise DataError(f"the shape of the XML is not usable: {where}: {problem['msg']}") from None
        except ValueError as error:
            raise DataError(f"{self.column}: the shape of the XML is not JSON: {error}") from None


def _missing(shape: XmlShape, root: Element, found: Outline) -> list[str]:
    there = {child.name for child in found.children if shape.allow_empty or not child.is_empty}
    children = [f"<{name}>" for name in dict.fromkeys(shape.required_children) if name not in there]
    return children + [name for name in dict.fromkeys(shape.required_attributes) if name not in root.attributes]
