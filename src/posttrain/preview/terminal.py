"""Show a preview in a terminal: colours where there are any, marks where there are none."""

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table
from rich.text import Text

from posttrain.base.console import console, new_table
from posttrain.base.text import on_one_line
from posttrain.data.ledger import ledger_table
from posttrain.preview.preview import Preview
from posttrain.preview.rows import Shown
from posttrain.preview.timeline import FirstRow, Span
from posttrain.preview.tokens import Side, Token, Tone, label, readable

_MOST = 1200
"""Tokens of a side; of a longer one the middle is left out."""

# Two shades each, so that the borders of tokens are seen.
_STYLES: dict[Tone, tuple[str, str]] = {
    "trained": ("bold black on green", "bold black on bright_green"),
    "context": ("default", "bright_black"),
    "cut": ("red strike", "bright_red strike"),
    "start": ("black on cyan", "black on bright_cyan"),
}
_MARKS: dict[Tone, tuple[str, str]] = {
    "trained": ("«", "»"),
    "context": ("", ""),
    "cut": ("~", "~"),
    "start": ("‹", "›"),
}
_NAMES: dict[Tone, str] = {
    "trained": "trained",
    "context": "context",
    "cut": "cut off",
    "start": "generation prompt",
}
_BAR = 50
_FILLS = "█▓▒░"


def show_preview(preview: Preview, *, ids: bool) -> None:
    """Print everything, at most as wide as the terminal."""
    if preview.ledgers:
        console.print(ledger_table(list(preview.ledgers)), soft_wrap=False)
    if preview.spans:
        _print(Text("\n".join(timeline_lines(preview.spans))))
        console.print(span_table(preview.spans), soft_wrap=False)
    if preview.first_rows:
        console.print(first_rows_table(preview.first_rows), soft_wrap=False)
    for name, told in preview.facts.items():
        _print(Text(f"stage {on_one_line(name)}: {on_one_line(told)}"))
    tones = {token.tone for row in preview.rows for side in row.sides for token in side.tokens}
    tones |= {token.tone for row in preview.rows if row.prompt for token in row.prompt.tokens}
    if tones:
        _print(legend([tone for tone in _NAMES if tone in tones]))
    for row in preview.rows:
        _show_row(row, ids=ids)


def legend(tones: Sequence[Tone]) -> Text:
    """What the colours mean."""
    text = Text("tokens: ")
    for tone in tones:
        text.append_text(tokens_text([Token(0, _NAMES[tone], tone)], ids=False)).append("  ")
    return text


def tokens_text(tokens: Sequence[Token], *, ids: bool) -> Text:
    """Tokens in their colours, or between marks where the terminal has no colours."""
    text, shade = Text(overflow="fold"), 0
    is_coloured = console.color_system is not None
    for tone, run in groupby(tokens, key=_tone):
        opening, closing = ("", "") if is_coloured else _MARKS[tone]
        text.append(opening)
        for token in run:
            text.append(label(token, ids=ids), style=_STYLES[tone][shade] if is_coloured else None)
            shade = 1 - shade
        text.append(closing)
    return text


def _tone(token: Token) -> Tone:
    return token.tone


def timeline_lines(spans: Sequence[Span]) -> list[str]:
    """A bar of the stages over the steps, and which part of each is of which data set."""
    total, width = spans[-1].last, max(len(on_one_line(span.stage)) for span in spans)
    names = list(dict.fromkeys(part.dataset for span in spans for part in span.parts))
    fills = {name: _FILLS[number % len(_FILLS)] for number, name in enumerate(names)}
    lines = ["timeline: " + ", ".join(f"{fills[name]} {on_one_line(name)}" for name in names)]
    for span in spans:
        begin = round(_BAR * (span.first - 1) / total)
        long = max(1, round(_BAR * span.last / total) - begin)
        ends = [round(long * sum(part.share for part in span.parts[: n + 1])) for n in range(len(span.parts))]
        bar = "".join(
            fills[part.dataset] * (end - start) for part, start, end in zip(span.parts, [0, *ends], ends, strict=False)
        )
        name = on_one_line(span.stage)
        lines.append(f"{name:<{min(width, 20)}} {' ' * begin}{bar}")
    return lines


def span_table(spans: Sequence[Span]) -> Table:
    """The rows of each stage, and how far each data set is used up, in epochs."""
    table = new_table("", "stage", "steps", "data set", "rows", "share", "epochs", words=("data set",))
    for span in spans:
        for number, part in enumerate(span.parts):
            head = ("", "") if number else (on_one_line(span.stage), f"{span.first}–{span.last}")
            epochs = f"{part.epochs_before:.2f}–{part.epochs_after:.2f}"
            table.add_row(*head, on_one_line(part.dataset), f"{part.rows:,}", f"{part.share:.0%}", epochs)
    return table


def first_rows_table(rows: Sequence[FirstRow]) -> Table:
    """The first rows of the first steps."""
    table = new_table("The first rows of steps", "step", "row", "epoch", "tokens", "trained", words=("row",))
    for row in rows:
        table.add_row(str(row.step), on_one_line(row.place), *map(str, (row.epoch, row.tokens, row.trained)))
    return table


def _show_row(row: Shown, *, ids: bool) -> None:
    _print(Text(f"\n── {on_one_line(row.place)} ({on_one_line(row.why)})", style="bold"))
    if row.facts:
        _print(Text("; ".join(row.facts)))
    if row.prompt is not None:
        _print(Text(f"{row.prompt.name}: {row.prompt.remark}", style="underline"), _of(row.prompt, ids=ids))
    if len(row.sides) == 1:
        (side,) = row.sides
        heading = [Text(f"{side.name}: {side.remark}", style="underline")] if side.name else []
        _print(*heading, _of(side, ids=ids))
    elif row.sides:
        table = Table(box=None, expand=True, padding=(0, 1, 0, 0), pad_edge=False)
        for side in row.sides:
            table.add_column(f"{side.name}: {side.remark}", ratio=1, overflow="fold")
        table.add_row(*(_of(side, ids=ids) for side in row.sides))
        console.print(table, soft_wrap=False)
    for title, text in row.texts.items():
        _print(Text(f"{title}: ", style="underline").append_text(Text(readable(text), style="not underline")))


def _of(side: Side, *, ids: bool) -> Text:
    tokens = side.tokens
    if len(tokens) <= _MOST:
        return tokens_text(tokens, ids=ids)
    half = _MOST // 2
    hidden = f"\n… {len(tokens) - 2 * half:,} tokens that --html shows …\n"
    start, end = tokens_text(tokens[:half], ids=ids), tokens_text(tokens[-half:], ids=ids)
    return start.append(hidden, style="italic").append_text(end)


def _print(*texts: Text) -> None:
    for text in texts:
        text.overflow = "fold"
        console.print(text, soft_wrap=False)
