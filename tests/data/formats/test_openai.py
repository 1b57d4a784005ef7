"""OpenAI's rows, compared with the types of the `openai` package."""

import json
import random
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter, ValidationError

from posttrain.conversation.messages import Conversation, Message, ToolCall
from posttrain.data.formats.openai import OPENAI
from posttrain.data.records import Columns, parse_record
from posttrain.errors import DataError

TYPES = TypeAdapter(ChatCompletionMessageParam)
TEXTS = ["", "hello", "<|im_end|>", "\n\nAssistant: no", "é\u2028"]
ARGUMENTS: list[Any] = ["{}", '{"x": 1}', {"x": 1}, {}, "[1]", "{", '{"x": 1, "x": 2}']


def read(row) -> Conversation:
    return parse_record(OPENAI.convert(row), Columns(), require_answer=False)[0]


def some_message(chance: random.Random, index: int) -> dict[str, Any]:
    role = chance.choice(["user", "user", "assistant", "assistant", "tool", "function", "bot"])
    if index == 0 or chance.random() < 0.05:
        role = chance.choice(["system", "developer", "user"])
    content = chance.choice(TEXTS)
    message: dict[str, Any] = {"role": role, "content": content}
    if chance.random() < 0.2:
        message["content"] = [{"type": "text", "text": content}, {"type": "text", "text": "!"}]
    if role == "tool":
        message["tool_call_id"] = chance.choice(["call_0", "call_1", "call_9"])
    if role == "function":
        message = {"role": role, "name": "f", "content": content}
    if role == "assistant" and chance.random() < 0.5:
        call = {"id": f"call_{chance.randrange(2)}", "type": "function"}
        message["tool_calls"] = [{**call, "function": {"name": "f", "arguments": chance.choice(ARGUMENTS)}}]
        if chance.random() < 0.5:
            message["content"] = None
    if role == "assistant" and chance.random() < 0.1:
        message = {"role": role, "content": None, "refusal": "I cannot."}
    if chance.random() < 0.03:
        message.pop("content")
    return message


def as_typed(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its arguments as the API writes them: JSON text."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json_text(call["function"]["arguments"])}}
        for call in message.get("tool_calls", [])
    ]
    return {**message, "tool_calls": calls} if calls else message


def json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part["text"] for part in content)
    return content if content is not None else message.get("refusal") or ""


def must_be_refused(messages: list[dict[str, Any]]) -> bool:
    called: set[str] = set()
    for index, message in enumerate(messages):
        try:
            TYPES.validate_python(as_typed(message))
        except ValidationError:
            return True
        if index > 0 and message["role"] in ("system", "developer"):
            return True
        if message["role"] == "tool" and message["tool_call_id"] not in called:
            return True
        if message.get("content") is None and not (message.get("tool_calls") or message.get("refusal")):
            return True
        for call in message.get("tool_calls", []):
            called.add(call["id"])
            if call["function"]["arguments"] in ("[1]", "{", '{"x": 1, "x": 2}'):
                return True
    return False


def test_ten_thousand_conversations_are_read_where_the_types_allow_them():
    chance, refused = random.Random(0), 0
    roles = {"developer": "system", "function": "tool"}
    for _ in range(10_000):
        messages = [some_message(chance, index) for index in range(chance.randrange(1, 5))]
        if must_be_refused(messages):
            refused += 1
            with pytest.raises(DataError):
                read({"messages": messages})
            continue
        got = read({"messages": messages}).messages
        expected = [(roles.get(each["role"], each["role"]), text_of(each)) for each in messages]
        assert [(each.role, each.content) for each in got] == expected
        for message, source in zip(got, messages, strict=True):
            calls = [each["function"] for each in source.get("tool_calls", [])]
            assert [(call.name, call.arguments) for call in message.tool_calls] == [
                (call["name"], json.loads(json_text(call["arguments"]))) for call in calls
            ]
    assert 2_000 < refused < 8_000


def test_functions_of_the_older_api_are_tools():
    row = {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}},
            {"role": "function", "name": "f", "content": "2"},
        ],
        "functions": [{"name": "f", "parameters": {"type": "object"}}],
        "parallel_tool_calls": False,
    }
    assert OPENAI.fits(row)
    assert read(row) == Conversation(
        (
            Message("user", "q"),
            Message("assistant", "", tool_calls=(ToolCall("f", {"x": 1}),)),
            Message("tool", "2", name="f"),
        ),
        ({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},),
    )


def test_a_preference_row_is_a_pair():
    row = {
        "input": {"messages": [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "q"}]},
        "preferred_output": [{"role": "assistant", "content": "good"}],
        "non_preferred_output": [{"role": "assistant", "content": "bad"}],
    }
    assert OPENAI.fits(row)
    converted = OPENAI.convert(row)
    assert converted["prompt"][0] == {"role": "system", "content": "Be brief."}
    assert [converted[side][0]["content"] for side in ("chosen", "rejected")] == ["good", "bad"]


def test_audio_is_refused():
    with pytest.raises(DataError, match=r"messages\[0\]: audio"):
        OPENAI.convert({"messages": [{"role": "assistant", "content": None, "audio": {"id": "a"}}]})


def test_messages_that_the_toolkit_reads_anyway_are_not_taken_for_it():
    assert not OPENAI.fits({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
