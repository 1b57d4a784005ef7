"""Parse and write JSON strictly: a repeated key, NaN, Infinity and deep nesting are errors."""

import codecs
import json
import math
from collections import Counter
from typing import Any, NoReturn

from posttrain.errors import DataError

# Deeper than any tool schema, and far below Python's recursion limit, whose headroom depends on the caller.
MAX_DEPTH = 100


_KINDS = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


_NOT_UTF8_AT_ALL = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16", b"\x1f\x8b": "gzip"}


def json_line(value: object) -> bytes:
    """One object as a line with its newline; ASCII escapes are used if UTF-8 cannot hold it (a lone surrogate)."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False).encode() + b"\n"


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse one JSON object; DataError gives the reason in one sentence, without file and line number."""
    value = parse_json(raw)
    if not isinstance(value, dict):
        raise DataError(f"not a JSON object but {_KINDS[type(value)]}")
    return value


def parse_json(raw: bytes) -> Any:
    """Parse one JSON value strictly; DataError as in `parse_object`."""
    try:
        value = json.loads(
            raw.decode(), object_pairs_hook=unrepeated, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except DataError:
        raise
    except UnicodeDecodeError as error:
        kind = next((kind for mark, kind in _NOT_UTF8_AT_ALL.items() if raw.startswith(mark)), None)
        hint = f"; this looks like {kind}" if kind else ""
        raise DataError(f"not UTF-8 at byte {error.start + 1} (0x{raw[error.start]:02x}){hint}") from None
    except json.JSONDecodeError as error:
        raise DataError(f"not JSON at column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise DataError(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:
        raise DataError("not usable JSON: an integer with thousands of digits") from None
    if _is_too_deep(value):
        raise DataError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs of a JSON object as a dict; DataError if a key is repeated."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise DataError(f"key {twice[:60]!r} appears more than once in one object")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise DataError(f"{name} is not JSON; leave the value out or write null")


def _finite_float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise DataError(f"{text[:60]} is larger than any float")
    return number


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return False
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [item for items in inner for item in items]
    return True
