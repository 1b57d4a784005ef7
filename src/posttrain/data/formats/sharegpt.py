"""ShareGPT: conversations as lists of `{from, value}`, as FastChat, Axolotl and LLaMA-Factory read them.

Pairs have the answers as single turns in `chosen` and `rejected`, labelled answers have `kto_tag`, both as in
LLaMA-Factory. A `system` column is the system message, and `tools` are JSON text.
"""

import json
from typing import Any

from posttrain.base.strict_json import unrepeated
from posttrain.data.formats.base import Row, RowFormat, with_system
from posttrain.errors import DataError

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
_CALL = "function_call"
_HOLDERS = ("conversations", "conversation", "messages")


def _fits(row: Row) -> bool:
    own = isinstance(row.get("prompt"), str) and row.get("completion", row.get("chosen")) is not None
    return not own and any(_is_turns(value) for value in row.values())


def _is_turns(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_turn, value))


def _is_turn(value: object) -> bool:
    return isinstance(value, dict) and {"from", "value"} <= value.keys()


def _convert(row: Row) -> dict[str, Any]:
    converted = dict(row)
    for name, value in row.items():
        if _is_turn(value):
            converted[name] = [_message(value, name)]
        elif isinstance(value, list) and any(map(_is_turn, value)):
            converted[name] = [_message(turn, f"{name}[{index}]") for index, turn in enumerate(value)]
    target = "prompt" if row.get("chosen") is not None and row.get("rejected") is not None else "messages"
    holder = next((name for name in _HOLDERS if row.get(name) is not None), None)
    if holder is not None:
        turns = converted.pop(holder)
        system = converted.pop("system", None)
        converted[target] = with_system(turns, system) if isinstance(turns, list) else turns
    if "kto_tag" in row:
        converted["label"] = converted.pop("kto_tag")
    return converted


def _message(turn: object, place: str) -> dict[str, Any]:
    if not _is_turn(turn):
        raise DataError(f"{place}: a turn needs `from` and `value`")
    assert isinstance(turn, dict)
    sender, value = turn["from"], turn["value"]
    others = {key: item for key, item in turn.items() if key not in ("from", "value")}
    if sender == _CALL:
        return {"role": "assistant", "content": None, "tool_calls": _calls(value, place), **others}
    if not isinstance(sender, str) or sender not in _ROLES:
        known = ", ".join([*_ROLES, _CALL])
        raise DataError(f"{place}: from must be one of {known}, not {str(sender)[:60]!r}")
    if not isinstance(value, str):
        raise DataError(f"{place}: value must be text, not {type(value).__name__}")
    return {"role": _ROLES[sender], "content": value, **others}


def _calls(value: object, place: str) -> list[Any]:
    """The tool calls in a `function_call` turn: the JSON text of one call or of a list of calls."""
    try:
        calls = json.loads(value, object_pairs_hook=unrepeated) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: a function_call must be JSON with name and arguments: {error}") from None
    return calls if isinstance(calls, list) else [calls]


SHAREGPT = RowFormat("sharegpt", "ShareGPT conversations (turns of `from` and `value`)", _fits, _convert)
