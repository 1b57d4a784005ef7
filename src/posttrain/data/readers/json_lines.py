"""Read JSON Lines, JSON arrays and plain texts as numbered objects; a bad line is a value, not an exception.

A file is read once, as bytes. JSON is parsed strictly where leniency would silently change data: repeated keys, NaN and
Infinity are faults. A line ends at "\\n" only, because strings may contain the other characters that Unicode counts as
line ends.
"""

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from posttrain.base.files import require_file
from posttrain.base.strict_json import parse_object
from posttrain.base.text import as_shown, on_one_line
from posttrain.errors import DataError

MAX_LINE_BYTES = 64 * 1024 * 1024

# A JSON array and a text are read as a whole, which takes several times their size in memory.
MAX_WHOLE_BYTES = 512 * 1024 * 1024


_SPACE = b" \t\r\n"
_BETWEEN_ELEMENTS = re.compile(r"[ \t\r\n,]*")


@dataclass(frozen=True, slots=True)
class Line:
    """One non-blank line, numbered from 1: an object, or the reason why it is not one."""

    number: int
    value: dict[str, Any] | None
    fault: str | None = None


def read_jsonl(path: Path, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """Every non-blank line, decompressed if the file is named `.gz`; DataError if there is no file to read."""
    for number, raw in numbered_lines(path, max_line_bytes):
        if raw is None:
            yield Line(number, None, f"longer than {max_line_bytes} bytes")
        # No JSON value starts with a BOM, so one inside the file is left over from concatenated files.
        elif text := raw.removeprefix(codecs.BOM_UTF8).strip(_SPACE):
            yield _line(number, text)


def read_json(path: Path) -> Iterator[Line]:
    """Elements of a JSON array, each with its first line; a file that is not an array is read as JSON Lines."""
    with open_bytes(path) as file, unreadable(path):
        is_array = file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip(_SPACE).startswith(b"[")
    return _array_elements(path) if is_array else read_jsonl(path)


def read_text(path: Path) -> Iterator[Line]:
    """The whole file as one row `{text}`, without a byte order mark; no row if it is blank."""
    whole = _whole(path).removeprefix(codecs.BOM_UTF8)
    if not whole.strip(_SPACE):
        return
    try:
        yield Line(1, {"text": whole.decode()})
    except UnicodeDecodeError as error:
        yield Line(whole[: error.start].count(b"\n") + 1, None, "not UTF-8")


def open_bytes(path: Path) -> io.BufferedIOBase:
    """The file's content, decompressed if it is named `.gz`."""
    require_file(path)
    return cast("io.BufferedIOBase", gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb"))


def numbered_lines(path: Path, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, bytes | None]]:
    """Lines with their line ends, counted from 1; None in place of one that is too long."""
    number = 0
    with open_bytes(path) as file, unreadable(path):
        while raw := file.readline(max_line_bytes + 1):
            number += 1
            too_long = len(raw) > max_line_bytes and not raw.endswith(b"\n")
            while too_long and raw and not raw.endswith(b"\n"):
                raw = file.readline(1 << 20)
            yield number, None if too_long else raw


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged disk or `.gz` file in the middle of reading into DataError."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{as_shown(path)} cannot be read to the end: {on_one_line(str(error))}") from None


def _line(number: int, raw: bytes) -> Line:
    try:
        return Line(number, parse_object(raw))
    except DataError as error:
        return Line(number, None, str(error))


def _array_elements(path: Path) -> Iterator[Line]:
    # Invalid bytes become lone surrogates, so that only their own element fails.
    text = _whole(path, "an array").removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{as_shown(path)}:{error.lineno}: not JSON at column {error.colno}: {error.msg}") from None
    except (RecursionError, ValueError):
        raise DataError(f"{as_shown(path)}: nested too deep, or an integer with thousands of digits") from None
    # The text is known to be one array, so the separators between its elements need no further check.
    decoder, number, position = json.JSONDecoder(), 1, 0
    end = text.index("[") + 1
    while True:
        start = cast("re.Match[str]", _BETWEEN_ELEMENTS.match(text, end)).end()
        if text[start] == "]":
            return
        number, position = number + text.count("\n", position, start), start
        end = decoder.raw_decode(text, start)[1]
        yield _line(number, text[start:end].encode("utf-8", "surrogateescape"))


def _whole(path: Path, what: str = "a text") -> bytes:
    whole = bytearray()
    with open_bytes(path) as file, unreadable(path):
        while part := file.read(1 << 20):
            whole += part
            if len(whole) > MAX_WHOLE_BYTES or path.stat().st_size > MAX_WHOLE_BYTES:
                raise DataError(
                    f"{as_shown(path)} is larger than {MAX_WHOLE_BYTES // 2**20} MiB, and {what} is read as a whole; "
                    "write one object per line, and name the file .jsonl"
                )
    return bytes(whole)
