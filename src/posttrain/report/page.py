"""Reports as one HTML file: it runs no script, loads nothing, and shows whatever text it is given as text."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, NamedTuple

from posttrain.base.files import atomic_write_text

_FOLDER = "posttrain.report"


@dataclass(frozen=True)
class Paragraph:
    """A sentence or two; `tone` colours it."""

    text: str
    tone: str = ""
    kind: ClassVar[str] = "paragraph"


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        words: columns of text; those of numbers are aligned on the right. The first column always holds text.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    words: frozenset[str] = frozenset()
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Facts:
    """Names and values, one pair a line."""

    pairs: Mapping[str, str]
    title: str = ""
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Picture:
    """A drawing in SVG; it is embedded as an image, in which no script runs."""

    title: str
    svg: str
    kind: ClassVar[str] = "picture"

    @property
    def source(self) -> str:
        """The drawing as the address of an image."""
        return f"data:image/svg+xml;base64,{b64encode(self.svg.encode()).decode()}"


@dataclass(frozen=True)
class Comparison:
    """One text and what several made of it, side by side.

    Attributes:
        answers: by name: the answer, and a remark such as its reward.
    """

    prompt: str
    note: str
    answers: Mapping[str, tuple[str, str]]
    kind: ClassVar[str] = "comparison"


@dataclass(frozen=True)
class Text:
    """A longer text as it is, folded away under its title."""

    title: str
    text: str
    kind: ClassVar[str] = "text"


class Piece(NamedTuple):
    """A piece of text in a tone, with a hint that shows under the pointer."""

    text: str
    tone: str
    hint: str


@dataclass(frozen=True)
class Tokens:
    """Texts in pieces, side by side.

    Attributes:
        sides: for each its name, a remark, and its pieces.
    """

    sides: Sequence[tuple[str, str, Sequence[Piece]]]
    kind: ClassVar[str] = "tokens"


@dataclass(frozen=True)
class Bars:
    """Bars one below the other, each beginning where the one above ends.

    Attributes:
        bars: for each its title, and its parts: the name, by which parts have the same colour, the width as a share of
            the whole, and a hint.
    """

    bars: Sequence[tuple[str, Sequence[tuple[str, float, str]]]]
    kind: ClassVar[str] = "bars"

    @property
    def names(self) -> list[str]:
        """The names of the parts, each once."""
        return list(dict.fromkeys(name for _, parts in self.bars for name, _, _ in parts))

    @property
    def starts(self) -> list[float]:
        """Where each bar begins, in percent of the whole."""
        widths = [sum(width for _, width, _ in parts) for _, parts in self.bars]
        return [100 * sum(widths[:number]) for number in range(len(widths))]


Block = Paragraph | Table | Facts | Picture | Comparison | Text | Tokens | Bars


@dataclass(frozen=True)
class Section:
    """Part of a page."""

    title: str
    blocks: Sequence[Block] = field(default_factory=tuple)


def html(title: str, sections: Sequence[Section], *, refresh_seconds: int | None = None) -> str:
    """The page; with `refresh_seconds`, a browser that shows it loads it again that often."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(_FOLDER).joinpath("page.html.jinja").read_text(encoding="utf-8"))
    shown = [section for section in sections if section.blocks]
    return template.render(title=title, sections=shown, style=shared_style(), refresh=refresh_seconds)


def shared_style() -> str:
    """The look that reports and the dataserver's page have in common, in CSS."""
    return files(_FOLDER).joinpath("style.css").read_text(encoding="utf-8")


def write_page(path: Path, title: str, sections: Sequence[Section], *, refresh_seconds: int | None = None) -> None:
    """Write the page, whole or not at all."""
    text = html(title, sections, refresh_seconds=refresh_seconds)
    atomic_write_text(path, text.encode(errors="replace").decode())  # a lone surrogate has no UTF-8
