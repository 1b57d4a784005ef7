"""Parsing JSON objects as conversations, and the error for each invalid one."""

import pytest

from posttrain.conversation.messages import Conversation, Message, ToolCall, parse_conversation, parse_message
from posttrain.errors import DataError

USER = {"role": "user", "content": "Hi"}
CALL = {"name": "add", "arguments": {"a": 1}}


def assistant(**keys):
    return {"role": "assistant", "content": "Hello", **keys}


def test_roles_and_contents_are_taken_over_in_order():
    conversation = parse_conversation([{"role": "system", "content": "Be kind."}, USER, assistant()])
    assert conversation == Conversation(
        (Message("system", "Be kind."), Message("user", "Hi"), Message("assistant", "Hello"))
    )


def test_text_parts_are_joined_without_a_separator():
    parts = [{"type": "text", "text": "One, "}, {"type": "text", "text": "two"}]
    assert parse_message({"role": "user", "content": parts}).content == "One, two"


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_has_two_spellings(key):
    assert parse_message(assistant(**{key: "Hm"})).reasoning == "Hm"


def test_empty_reasoning_is_not_absent_reasoning():
    assert parse_message(assistant(reasoning_content="")).reasoning == ""
    assert parse_message(assistant(reasoning_content=None)).reasoning is None


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        {"type": "function", "id": "call_1", "function": CALL},
        {"name": "add", "arguments": '{"a": 1}'},
        {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}, "name": None},
    ],
)
def test_tool_calls_come_wrapped_or_bare_with_arguments_as_object_or_text(call):
    message = parse_message({"role": "assistant", "content": None, "tool_calls": [call, call]})
    assert message == Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1}),) * 2)


def test_null_keys_and_ids_are_passed_over():
    message = {**USER, "id": 7, "tool_call_id": "x", "tool_calls": None, "refusal": None, "train": None}
    assert parse_message(message) == Message("user", "Hi")


@pytest.mark.parametrize(("keys", "train"), [({}, True), ({"train": False}, False), ({"weight": 0}, False)])
def test_a_turn_can_be_taken_out_of_training(keys, train):
    assert parse_message(assistant(**keys)).train is train


def test_train_false_on_a_user_message_says_what_is_so_anyway():
    assert parse_message({**USER, "train": False}) == Message("user", "Hi")


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("Hi", "a message must be a JSON object, not str"),
        ({"content": "Hi"}, "role must be one of system, user, assistant, tool, not None"),
        ({"role": "developer", "content": "Hi"}, "not 'developer'"),
        ({"role": ["user"], "content": "Hi"}, r"not \['user'\]"),
        ({"role": "user"}, "content is missing"),
        ({"role": "user", "content": 3}, "content must be a string, not int"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "part of type 'image_url': only text"),
        (
            {"role": "user", "content": [{"type": "text"}]},
            "text of a content part must be a string, not null",
        ),
        ({"role": "user", "content": "\ud800"}, "content holds a lone surrogate at character 0"),
        ({**USER, "wieght": 1}, "unknown key 'wieght'"),
        ({**USER, "train": True}, "train belongs to assistant messages, not to a user message"),
        ({**USER, "tool_calls": [CALL]}, "tool_calls belongs to assistant messages"),
        ({**USER, "name": 3}, "name must be a string, not int"),
        ({"role": "assistant", "content": None}, "content is missing"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "content is missing"),
        (assistant(train="no"), "train must be true or false, not str"),
        (assistant(weight=0.5), "weight of a message must be 0 or 1, not 0.5"),
        (assistant(weight=1, train=True), "train and weight are both given"),
        (assistant(reasoning=["x"]), "reasoning must be a string, not list"),
        (assistant(reasoning="x", reasoning_content="y"), "both given and differ"),
        (assistant(tool_calls=CALL), "tool_calls must be a list, not dict"),
        (assistant(tool_calls=[{"arguments": {}}]), "name of a tool call must be a string, not null"),
        (assistant(tool_calls=[{"name": "", "arguments": {}}]), "name of a tool call is empty"),
        (
            assistant(tool_calls=[{"name": "add"}]),
            "arguments of tool call 'add' must be a JSON object, not null",
        ),
        (assistant(tool_calls=[{"name": "add", "arguments": "{'a': 1}"}]), "are not valid JSON"),
        (assistant(tool_calls=[{"name": "add", "arguments": "[1]"}]), "must be a JSON object, not list"),
        (assistant(tool_calls=[{"name": "add", "arguments": '{"a": NaN}'}]), "cannot be written as JSON"),
        (assistant(tool_calls=[{"name": "add", "arguments": {"a": object()}}]), "cannot be written as JSON"),
        (assistant(tool_calls=[{"name": "add", "arguments": '{"a": "\\ud800"}'}]), "cannot be written"),
        (assistant(tool_calls=[{**CALL, "type": "custom"}]), "type of a tool call must be 'function'"),
        (assistant(tool_calls=[{**CALL, "args": {}}]), "unknown key 'args'"),
        (assistant(tool_calls=[{"function": {**CALL, "strict": True}}]), "unknown key 'strict'"),
    ],
)
def test_a_fault_in_a_message_is_named(message, fault):
    with pytest.raises(DataError, match=fault):
        parse_message(message)


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "messages is an empty list"),
        (None, "messages must be a list, not null"),
        ({"role": "user"}, "messages must be a list, not dict"),
        ([USER, {"role": "robot", "content": "x"}, {"role": "user"}], r"messages\[1\]: role must be one of"),
        ([USER, {"role": "system", "content": "x"}], r"messages\[1\]: a system message can only come first"),
    ],
)
def test_a_fault_in_a_conversation_is_named_with_its_place(messages, fault):
    with pytest.raises(DataError, match=fault) as caught:
        parse_conversation(messages)
    assert "\n" not in str(caught.value)


def test_tools_are_kept_as_they_are_given():
    tools = [{"type": "function", "function": {"name": "add", "x": None}}, {"name": "sub", "parameters": {}}]
    assert parse_conversation([USER], tools).tools == tuple(tools)
    assert parse_conversation([USER], None).tools == ()


@pytest.mark.parametrize(
    ("tools", "fault"),
    [
        ("[]", "tools must be a list, not str"),
        (["add"], r"tools\[0\] must be a JSON object, not str"),
        ([{"type": "function"}], r"tools\[0\] has no function name"),
        ([{"function": "add"}], r"function of tools\[0\] must be a JSON object, not str"),
        (
            [{"name": "add"}, {"function": {"name": "add"}}],
            r"tools\[1\]: there is already a tool named 'add'",
        ),
        ([{"name": "add", "minimum": float("inf")}], r"tools\[0\] cannot be written as JSON"),
    ],
)
def test_a_fault_in_the_tools_is_named(tools, fault):
    with pytest.raises(DataError, match=fault):
        parse_conversation([USER], tools)
