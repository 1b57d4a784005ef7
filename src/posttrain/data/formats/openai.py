"""OpenAI's fine-tuning files: chat messages with everything the API knows, and preference rows.

The toolkit's own `messages` are already OpenAI's. This format adds the role `developer` (system), refusals, the older
`functions`, `function_call` and role `function`, `input` with `preferred_output` and `non_preferred_output`, and checks
that each tool result answers a call.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.data.formats.base import Row, RowFormat
from posttrain.errors import DataError

_ROLES = {"developer": "system", "function": "tool"}
_OWN_KEYS = {"functions", "parallel_tool_calls", "preferred_output"}
# Keys of a message that the toolkit's own messages do not have.
_OWN_TURN_KEYS = {"function_call", "refusal", "audio", "annotations"}


def _fits(row: Row) -> bool:
    if isinstance(row.get("input"), Mapping):
        return isinstance(row["input"].get("messages"), list) and "preferred_output" in row
    messages = row.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) and "role" in each for each in messages):
        return False
    return bool(_OWN_KEYS & row.keys()) or any(
        each["role"] in _ROLES or _OWN_TURN_KEYS & each.keys() for each in messages
    )


def _convert(row: Row) -> dict[str, Any]:
    source = row.get("input") if isinstance(row.get("input"), Mapping) else row
    assert isinstance(source, Mapping)
    messages = _messages(source.get("messages"), "messages")
    converted = {name: value for name, value in row.items() if name not in ("input", "functions")}
    tools = list(source.get("tools") or [])
    tools += [{"type": "function", "function": each} for each in source.get("functions") or []]
    if tools:
        converted["tools"] = tools
    if source is row:
        return {**converted, "messages": messages}
    sides = {"chosen": "preferred_output", "rejected": "non_preferred_output"}
    return {**converted, "prompt": messages, **{side: _messages(row.get(name), name) for side, name in sides.items()}}


def _messages(value: object, place: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise DataError(
            f"{place} must be a list of messages, not {'missing' if value is None else type(value).__name__}"
        )
    called: set[object] = set()
    converted = []
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise DataError(f"{place}[{index}] must be a message, not {type(item).__name__}")
        converted.append(_message(item, f"{place}[{index}]"))
        _require_called(item, called, f"{place}[{index}]")
        called |= set(_ids_of_calls(item))
    return converted


def _message(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    if item.get("audio") is not None:
        raise DataError(f"{place}: audio cannot be trained here; only text can")
    message = {key: value for key, value in item.items() if key not in _OWN_TURN_KEYS}
    message["role"] = _ROLES.get(str(item.get("role")), item.get("role"))
    if item.get("function_call") is not None:
        message["tool_calls"] = [{"type": "function", "function": item["function_call"]}]
    if isinstance(content := item.get("content"), list):
        message["content"] = [_part(part) for part in content]
    if message.get("content") is None and item.get("refusal") is not None:
        message["content"] = item["refusal"]
    return message


def _part(part: object) -> object:
    if isinstance(part, Mapping) and part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return part


def _ids_of_calls(item: Mapping[str, Any]) -> Iterator[object]:
    for call in item.get("tool_calls") or []:
        if isinstance(call, Mapping) and call.get("id") is not None:
            yield call["id"]


def _require_called(item: Mapping[str, Any], called: set[object], place: str) -> None:
    answered = item.get("tool_call_id")
    if item.get("role") == "tool" and answered is not None and answered not in called:
        raise DataError(f"{place}: no earlier message calls a tool with the id {str(answered)[:60]!r}")


OPENAI = RowFormat("openai", "OpenAI's fine-tuning rows", _fits, _convert)
