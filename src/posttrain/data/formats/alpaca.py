"""Alpaca: `instruction`, `input` and `output`, with `system`, `history`, `chosen`, `rejected` and `kto_tag` as in
LLaMA-Factory.

`alpaca` makes a chat turn of them, as the models that are trained here are asked: instruction and input on lines of
their own. `alpaca_prompt` writes the turn as the prompt that Stanford Alpaca was trained with
(https://github.com/tatsu-lab/stanford_alpaca, train.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from posttrain.data.formats.base import Row, RowFormat, with_system
from posttrain.errors import DataError

_BEGIN = "Below is an instruction that describes a task"
_END = "Write a response that appropriately completes the request.\n\n### Instruction:\n"


def _fits(row: Row) -> bool:
    has_answer = any(isinstance(row.get(name), str) for name in ("output", "chosen"))
    return isinstance(row.get("instruction"), str) and has_answer and not ({"messages", "prompt"} & row.keys())


def _chat_turn(instruction: str, context: str) -> str:
    return f"{instruction}\n{context}" if context else instruction


def _published_prompt(instruction: str, context: str) -> str:
    if context:
        paired = "paired with an input that provides further context"
        return f"{_BEGIN}, {paired}. {_END}{instruction}\n\n### Input:\n{context}\n\n### Response:"
    return f"{_BEGIN}. {_END}{instruction}\n\n### Response:"


def _convert(row: Row, turn: Callable[[str, str], str]) -> dict[str, Any]:
    instruction, context = _text(row, "instruction"), _text(row, "input", optional=True)
    messages: list[Any] = []
    for index, pair in enumerate(row.get("history") or []):
        if not (isinstance(pair, list) and len(pair) == 2):
            raise DataError(f"history[{index}] must be a pair of texts, what was asked and what was answered")
        asked, answered = pair
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    messages = with_system([*messages, {"role": "user", "content": turn(instruction, context)}], row.get("system"))
    converted = {name: value for name, value in row.items() if name not in ("instruction", "input", "system")}
    if row.get("chosen") is not None and row.get("rejected") is not None:
        return {**converted, "prompt": messages}
    if "kto_tag" in row:
        converted["label"] = converted.pop("kto_tag")
    answer = [] if row.get("output") is None else [{"role": "assistant", "content": row["output"]}]
    return {**converted, "messages": [*messages, *answer]}


def _text(row: Row, name: str, *, optional: bool = False) -> str:
    value = row.get(name)
    if value is None and optional:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{name} must be text, not {'missing' if value is None else type(value).__name__}")
    return value


_SHAPE = "Alpaca rows (`instruction`, `input`, `output`)"

ALPACA = RowFormat("alpaca", _SHAPE, _fits, partial(_convert, turn=_chat_turn))
ALPACA_PROMPT = RowFormat("alpaca_prompt", _SHAPE, _fits, partial(_convert, turn=_published_prompt))
