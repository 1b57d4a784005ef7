"""Write a preview as one HTML file."""

from collections.abc import Iterator
from pathlib import Path

from posttrain.preview.preview import Preview
from posttrain.preview.rows import Shown
from posttrain.preview.timeline import Span
from posttrain.preview.tokens import Side, readable, visible
from posttrain.report.page import Bars, Block, Facts, Paragraph, Piece, Section, Table, Tokens, write_page

_READING = (
    "Tokens in green are trained; grey ones are context; red ones were cut off and are not seen. Hover over a token "
    "for its id."
)
_TONES = {"trained": "good", "context": "quiet", "cut": "bad", "start": "warn"}


def write_preview(path: Path, preview: Preview) -> None:
    """Write the page, whole or not at all."""
    write_page(path, f"Preview of {preview.title}", list(sections(preview)))


def sections(preview: Preview) -> Iterator[Section]:
    """The curriculum, the counts of the data, and each row."""
    yield Section("How to read this", [Paragraph(_READING)])
    if preview.spans:
        yield Section("Timeline", [_bars(preview.spans[-1].last, preview), _spans(preview)])
    if preview.facts:
        yield Section("Stages", [Facts(preview.facts)])
    if preview.first_rows:
        columns = ["step", "row", "stage", "epoch", "tokens", "trained"]
        rows = [
            [str(row.step), row.place, row.stage, str(row.epoch), f"{row.tokens:,}", f"{row.trained:,}"]
            for row in preview.first_rows
        ]
        yield Section("First rows of steps", [Table(columns, rows, words=frozenset({"row", "stage"}))])
    if preview.ledgers:
        yield Section("Data", [_ledgers(preview)])
    for row in preview.rows:
        yield Section(row.place, list(_row(row)))


def _bars(total: int, preview: Preview) -> Bars:
    def told(span: Span) -> list[tuple[str, float, str]]:
        steps = span.steps / total
        return [
            (part.dataset, part.share * steps, f"{part.dataset}: {part.rows:,} rows, {part.share:.0%}")
            for part in span.parts
        ]

    return Bars([(f"{span.stage} (steps {span.first}–{span.last})", told(span)) for span in preview.spans])


def _spans(preview: Preview) -> Table:
    rows = [
        [
            span.stage,
            f"{span.first}–{span.last}",
            part.dataset,
            f"{part.rows:,}",
            f"{part.share:.1%}",
            f"{part.epochs_before:.2f}–{part.epochs_after:.2f}",
        ]
        for span in preview.spans
        for part in span.parts
    ]
    return Table(["stage", "steps", "data set", "rows", "share", "epochs"], rows, words=frozenset({"data set"}))


def _ledgers(preview: Preview) -> Table:
    columns = ["data set", "records", "bad", "dropped", "cut", "rows", "tokens", "trained"]
    rows = [
        [
            ledger.name,
            f"{ledger.records:,}",
            f"{ledger.bad:,}",
            ", ".join(f"{count:,} {reason}" for reason, count in ledger.dropped.items()) or "0",
            f"{ledger.cut_left + ledger.cut_right:,}",
            f"{ledger.rows:,}",
            f"{ledger.tokens:,}",
            f"{ledger.trained_share:.0%}",
        ]
        for ledger in preview.ledgers
    ]
    return Table(columns, rows, words=frozenset({"dropped"}))


def _row(row: Shown) -> Iterator[Block]:
    yield Paragraph("; ".join([row.why, *row.facts]))
    if row.prompt is not None:
        yield Tokens([_side(row.prompt)])
    if row.sides:
        yield Tokens([_side(side) for side in row.sides])
    if row.texts:
        yield Facts({title: readable(text) for title, text in row.texts.items()})


def _side(side: Side) -> tuple[str, str, list[Piece]]:
    pieces = [Piece(visible(token.text) or "⋯", _TONES[token.tone], str(token.id)) for token in side.tokens]
    return side.name, side.remark, pieces
