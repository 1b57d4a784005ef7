"""XML that a model wrote, reduced to its root and the elements right below it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from posttrain.dataserver.graders.text.visible import visible
from posttrain.errors import DataError


@dataclass
class Element:
    """One element; names are `{namespace}name` where they have a namespace."""

    name: str
    attributes: frozenset[str]
    is_empty: bool
    """No attributes, no elements, and no text that can be seen."""


@dataclass
class Outline:
    """Receives the parser's events. Nothing is kept of what lies deeper, so nesting costs nothing."""

    root: Element | None = None
    children: list[Element] = field(default_factory=list)
    depth: int = 0

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        """An element begins."""
        self._fill()
        element = Element(name, frozenset(attributes), is_empty=not attributes)
        if self.root is None:
            self.root = element
        elif self.depth == 1:
            self.children.append(element)
        self.depth += 1

    def end(self, name: str) -> None:
        """An element ends."""
        self.depth -= 1

    def data(self, text: str) -> None:
        """Text within the element that began last and has not ended."""
        if visible(text):
            self._fill()

    def comment(self, text: str) -> None:
        """A comment, which is nothing inside of an element, and text around it elsewhere."""
        if not self.depth:
            raise DataError("a comment or an instruction stands beside the element")

    def pi(self, target: str, data: str | None = None) -> None:
        """A processing instruction."""
        self.comment(target)

    def _fill(self) -> None:
        if self.root is not None:
            self.root.is_empty = False
        if self.depth > 1:
            self.children[-1].is_empty = False


def outline(text: str) -> Outline:
    """Read XML; the root of what it returns is there.

    Raises:
        DataError: it is not well-formed, or it has a document type, which could define entities that expand without
            bound or name files; or a comment stands before or after the element.
    """
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import DefusedXMLParser, ParseError

    found = Outline()
    parser = DefusedXMLParser(target=found, forbid_dtd=True)
    try:
        parser.feed(text.strip())
        parser.close()
    except DefusedXmlException:
        raise DataError("a document type or an entity is refused") from None
    except UnicodeEncodeError:
        raise DataError("half a character (a lone surrogate) is no XML") from None
    except ParseError as error:
        raise DataError(f"not XML: {error}") from None
    return found
