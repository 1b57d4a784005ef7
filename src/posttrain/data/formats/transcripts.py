"""Transcripts as text, with turns after "\\n\\nHuman:" and "\\n\\nAssistant:", as Anthropic's hh-rlhf is published.

The two sides of a pair share their beginning up to the last "\\n\\nAssistant:" before they differ. A marker inside a
turn's own text cannot be told from the beginning of a turn, so it begins one. A column `prompt` may end with the
marker of the answer.
"""

import re
from typing import Any

from posttrain.data.formats.base import Row, RowFormat
from posttrain.errors import DataError

_BEGINNING = re.compile(r"\s*(Human|Assistant):")
_TURN = re.compile(r"(?:^\s*|\n\n)(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def _fits(row: Row) -> bool:
    return any(_is_transcript(value) for value in row.values())


def _is_transcript(value: object) -> bool:
    return isinstance(value, str) and _BEGINNING.match(value) is not None and "Assistant:" in value


def _convert(row: Row) -> dict[str, Any]:
    if not _fits(row):
        raise DataError('no column has a transcript, with turns after "\\n\\nHuman:" and "\\n\\nAssistant:"')
    converted = {name: _messages(value) if _is_transcript(value) else value for name, value in row.items()}
    if _is_transcript(row.get("prompt")) and converted["prompt"][-1] == {"role": "assistant", "content": ""}:
        converted["prompt"].pop()
    return converted


def _messages(text: str) -> list[dict[str, str]]:
    starts = list(_TURN.finditer(text))
    ends = [*(start.start() for start in starts[1:]), len(text)]
    return [
        {"role": _ROLES[start[1]], "content": text[start.end() : end].removeprefix(" ")}
        for start, end in zip(starts, ends, strict=True)
    ]


TRANSCRIPTS = RowFormat("transcripts", "transcripts (turns after `Human:` and `Assistant:`)", _fits, _convert)
