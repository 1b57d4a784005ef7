"""Conversations as frozen dataclasses, and parsing them from JSON objects.

The input has the OpenAI format. A message is `{role, content}`, where content is a string, a list of
`{"type": "text", "text": ...}` parts (joined without a separator), or null beside `tool_calls`. An assistant
message may also hold `reasoning_content` (or `reasoning`; null is no reasoning, "" is an empty block),
`tool_calls` (`{"type": "function", "function": {"name", "arguments"}}` or bare `{"name", "arguments"}`, with
arguments as an object or as its JSON text) and `train: bool` (or OpenAI's `weight: 0 | 1`).

Keys that are null count as absent, since tables of records fill missing keys with null. `id`, `index` and
`tool_call_id` are ignored. Any other key is refused, so that no setting is silently ignored. An error reports only the
first fault and no file name: the caller adds `file:line`.
"""

import json
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast, get_args

from posttrain.base.strict_json import unrepeated
from posttrain.errors import DataError

Role = Literal["system", "user", "assistant", "tool"]
T = TypeVar("T")

_ROLES: tuple[str, ...] = get_args(Role)
_ASSISTANT_KEYS = ("reasoning_content", "reasoning", "tool_calls", "train", "weight")
_UNREAD_KEYS = ("id", "index", "tool_call_id")
_MESSAGE_KEYS = {"role", "content", "name", *_ASSISTANT_KEYS, *_UNREAD_KEYS}
_KINDS = {str: "a string", list: "a list", dict: "a JSON object", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call by the assistant; `arguments` is a JSON object."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Message:
    """One message; `train` says whether an assistant message may be trained (other roles never are)."""

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    train: bool = True


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order, and the definitions of the tools that the assistant may call."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()


def parse_conversation(messages: object, tools: object = None) -> Conversation:
    """Parse `messages` and `tools` as loaded from JSON; DataError names the first fault."""
    items = _typed(messages, list, "messages")
    if not items:
        raise DataError("messages is an empty list")
    parsed = []
    for index, item in enumerate(items):
        try:
            parsed.append(parse_message(item))
        except DataError as error:
            raise DataError(f"messages[{index}]: {error}") from None
        if parsed[index].role == "system" and index > 0:
            raise DataError(f"messages[{index}]: a system message can only come first")
    return Conversation(tuple(parsed), _tools(tools))


def parse_message(obj: object) -> Message:
    """Parse one message object; DataError names the first fault."""
    record = _present(obj, "a message", _MESSAGE_KEYS)
    role = record.get("role")
    if role not in _ROLES:
        raise DataError(f"role must be one of {', '.join(_ROLES)}, not {role!r}")
    content = _content(record)
    name = _text(record["name"], "name") if "name" in record else None
    if role == "assistant":
        calls = _typed(record.get("tool_calls", []), list, "tool_calls")
        calls = tuple(_tool_call(call) for call in calls)
        return Message("assistant", content, _reasoning(record), calls, name, _train(record))
    for key in _ASSISTANT_KEYS:
        if record.get(key):
            raise DataError(f"{key} belongs to assistant messages, not to a {role} message")
    return Message(cast("Role", role), content, name=name)


def _content(record: dict[str, Any]) -> str:
    content = record.get("content")
    if content is None and record.get("tool_calls"):
        return ""
    if content is None:
        raise DataError("content is missing; it may be null only alongside tool_calls")
    if isinstance(content, list):
        return "".join(_text_part(part) for part in content)
    return _text(content, "content")


def _text_part(part: object) -> str:
    record = _present(part, "a content part", {"type", "text"})
    if record.get("type") != "text":
        raise DataError(f"content part of type {record.get('type')!r}: only text parts are supported")
    return _text(record.get("text"), "the text of a content part")


def _reasoning(record: dict[str, Any]) -> str | None:
    given = [key for key in ("reasoning_content", "reasoning") if key in record]
    if len(given) == 2 and record["reasoning"] != record["reasoning_content"]:
        raise DataError("reasoning and reasoning_content are both given and differ")
    return _text(record[given[0]], given[0]) if given else None


def _train(record: dict[str, Any]) -> bool:
    if "train" in record and "weight" in record:
        raise DataError("train and weight are both given; they mean the same thing; keep one")
    if "weight" in record and record["weight"] not in (0, 1):
        raise DataError(f"weight of a message must be 0 or 1, not {record['weight']!r}")
    if "weight" in record:
        return record["weight"] == 1
    return _typed(record.get("train", True), bool, "train")


def _tool_call(obj: object) -> ToolCall:
    call = _present(obj, "a tool call", {"function", "name", "arguments", "type", *_UNREAD_KEYS})
    if call.get("type", "function") != "function":
        raise DataError(f"type of a tool call must be 'function', not {call['type']!r}")
    if "function" in call:
        call = _present(call["function"], "function of a tool call", {"name", "arguments"})
    name = _text(call.get("name"), "name of a tool call")
    if not name:
        raise DataError("name of a tool call is empty")
    what = f"arguments of tool call {name!r}"
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, object_pairs_hook=unrepeated)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{what} are not valid JSON: {error}") from None
    return ToolCall(name, _writable(_typed(arguments, dict, what), what))


def _tools(tools: object) -> tuple[dict[str, Any], ...]:
    checked: dict[str, dict[str, Any]] = {}
    for index, item in enumerate([] if tools is None else _typed(tools, list, "tools")):
        tool = _typed(item, dict, f"tools[{index}]")
        function = _typed(tool.get("function", tool), dict, f"function of tools[{index}]")
        name = function.get("name")
        if not isinstance(name, str) or not name:
            raise DataError(f"tools[{index}] has no function name")
        if name in checked:
            raise DataError(f"tools[{index}]: there is already a tool named {name!r}")
        checked[name] = _writable(tool, f"tools[{index}]")
    return tuple(checked.values())


def _present(obj: object, what: str, known: set[str]) -> dict[str, Any]:
    """The entries of a JSON object that are not null; DataError if a key is not in `known`."""
    record = {key: value for key, value in _typed(obj, dict, what).items() if value is not None}
    for key in record:
        if key not in known:
            raise DataError(f"unknown key {key!r}; {what} can contain {', '.join(sorted(known))}")
    return record


def _typed(value: object, kind: type[T], what: str) -> T:
    if not isinstance(value, kind):
        given = "null" if value is None else type(value).__name__
        raise DataError(f"{what} must be {_KINDS[kind]}, not {given}")
    return value


def _text(value: object, what: str) -> str:
    text = _typed(value, str, what)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # JSON can spell a lone surrogate, which no tokenizer accepts.
        raise DataError(f"{what} holds a lone surrogate at character {error.start}") from None
    return text


def _writable(value: dict[str, Any], what: str) -> dict[str, Any]:
    """Return the value; DataError if it cannot be written as valid JSON, e.g. NaN, dates, lone surrogates."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"{what} cannot be written as JSON: {error}") from None
    return value
