"""Texts built from several columns by a template such as `{question}\\n\\n{context}`; `{{` and `}}` are braces."""

from collections.abc import Mapping
from string import Formatter
from typing import Any

from posttrain.errors import DataError


def template_fields(template: str) -> tuple[str, ...]:
    """The columns that a template names; none if it is the plain name of a column.

    Raises:
        ValueError: the braces do not match, or enclose something other than the name of a column.
    """
    if "{" not in template:
        return ()
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"{template!r} is not a template: {error}; write {{{{ and }}}} for braces") from None
    fields = [name for _, name, _, _ in parts if name is not None]
    for _, name, spec, conversion in parts:
        if name is not None and (not name or spec or conversion):
            raise ValueError(f"{template!r} is not a template: braces must enclose the name of a column, and no more")
    if not fields:
        raise ValueError(f"{template!r} is not a template: it names no column")
    return tuple(dict.fromkeys(fields))


def fill_template(template: str, row: Mapping[str, Any]) -> str:
    """The text for a row; numbers are written as Python writes them.

    Raises:
        DataError: a column is missing, null, or neither text nor a number.
    """
    texts = []
    for literal, name, _, _ in Formatter().parse(template):
        texts.append(literal)
        if name is not None:
            texts.append(_text(row.get(name), name, template))
    return "".join(texts)


def _text(value: Any, name: str, template: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    given = "null or missing" if value is None else f"{type(value).__name__}, not text"
    raise DataError(f"the template {template[:60]!r} needs a text in column {name!r}, which is {given}")
