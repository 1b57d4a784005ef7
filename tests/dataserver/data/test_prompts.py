"""From a row to the messages that the model answers, and to the gold answer."""

import json
from typing import Any

import pytest

from posttrain.conversation.messages import Conversation
from posttrain.dataserver.config.datasets import PromptColumnsConfig
from posttrain.dataserver.config.grading import GoldConfig
from posttrain.dataserver.data.prompts import gold_answer, last_user_text, parse_prompt, prompt_columns, wire_messages
from posttrain.errors import DataError

USER = {"role": "user", "content": "1 + 1?"}
ASSISTANT = {"role": "assistant", "content": "2"}
SYSTEM = {"role": "system", "content": "Be short."}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def parse(record: dict[str, Any], system: str | None = None, **columns: str) -> Conversation:
    return parse_prompt(record, prompt_columns(PromptColumnsConfig(**columns)), system)


def turns(record: dict[str, Any], system: str | None = None, **columns: str) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in parse(record, system, **columns).messages]


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ({"prompt": "1 + 1?"}, [USER]),
        ({"prompt": [SYSTEM, USER]}, [SYSTEM, USER]),
        ({"messages": [USER]}, [USER]),
        ({"messages": [USER, ASSISTANT]}, [USER]),
        ({"messages": [USER, ASSISTANT, ASSISTANT]}, [USER]),
        ({"messages": [USER, ASSISTANT, USER]}, [USER, ASSISTANT, USER]),
        ({"messages": [USER], "prompt": "other"}, [USER]),
        ({"prompt": "1 + 1?", "completion": "2", "weight": "much"}, [USER]),
    ],
)
def test_the_prompt_ends_where_an_answer_is_wanted(record: dict[str, Any], wanted: list[dict[str, str]]) -> None:
    assert turns(record) == [(message["role"], message["content"]) for message in wanted]


def test_the_columns_may_have_other_names() -> None:
    assert turns({"question": "1 + 1?", "prompt": "other"}, prompt="question") == [("user", "1 + 1?")]
    conversation = [{"role": "user", "content": "1 + 1?"}]
    assert turns({"chat": conversation, "messages": "other"}, messages="chat") == [("user", "1 + 1?")]


def test_the_system_message_of_the_data_set_is_for_rows_that_bring_none() -> None:
    columns = prompt_columns(PromptColumnsConfig(system="rule"))
    for record, wanted in [
        ({"prompt": "q"}, "From the config."),
        ({"prompt": "q", "rule": None}, "From the config."),
        ({"prompt": "q", "rule": "From the row."}, "From the row."),
        ({"messages": [SYSTEM, USER]}, "Be short."),
    ]:
        first = parse_prompt(record, columns, "From the config.").messages[0]
        assert (first.role, first.content) == ("system", wanted)


def test_a_tool_s_answer_waits_for_the_model_too() -> None:
    tool = {"role": "tool", "content": "2", "tool_call_id": "1"}
    called = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    conversation = parse({"messages": [USER, called, tool], "tools": [{"name": "add"}]})
    assert [message.role for message in conversation.messages] == ["user", "assistant", "tool"]
    assert conversation.tools == ({"name": "add"},)
    assert last_user_text(conversation) == "1 + 1?"


@pytest.mark.parametrize("messages", [[SYSTEM], [ASSISTANT], [SYSTEM, ASSISTANT]])
def test_without_a_question_there_is_no_prompt(messages: list[dict[str, str]]) -> None:
    with pytest.raises(DataError, match="the prompt has no user message"):
        parse({"messages": messages})


def test_messages_are_sent_in_the_openai_shape() -> None:
    answered = {**ASSISTANT, "content": "", "tool_calls": [CALL], "reasoning_content": "hm"}
    tool = {"role": "tool", "content": "2", "name": "add"}
    sent = [
        message.model_dump(exclude_none=True) for message in wire_messages(parse({"messages": [USER, answered, tool]}))
    ]
    assert sent == [
        USER,
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "content": "2", "name": "add"},
    ]
    assert json.loads(json.dumps(sent)) == sent


@pytest.mark.parametrize(
    ("answer", "how", "gold"),
    [
        ("Natalia sold 48 + 24 = 72.\n#### 72", {"after": "####"}, "72"),
        ("#### 1\n#### 2 ", {"after": "####"}, "2"),
        (r"so \boxed{\frac{1}{2}}.", "boxed", r"\frac{1}{2}"),
        ("first 3, then 1,234.", "last_number", "1,234"),
        (" all of it\n", "all", "all of it"),
        ("answer: B.", {"regex": r"answer: ([A-D])"}, "B"),
        # What is no text is taken as it is.
        (72, "last_number", 72),
        (False, "all", False),
        (["a", "b"], "boxed", ["a", "b"]),
        ({"a": 1}, "all", {"a": 1}),
    ],
)
def test_the_gold_is_the_part_that_the_config_names(answer: Any, how: Any, gold: Any) -> None:
    config = GoldConfig.model_validate({"extract": how})
    assert gold_answer({"answer": answer}, config) == gold


def test_the_gold_may_stand_inside_an_object() -> None:
    record = {"a": {"b": {"c": 1}, "b.c": 2}, "a.b": {"c": 3}, "x": {"y.z": 4}}
    found = {column: gold_answer(record, GoldConfig(column=column)) for column in ("a.b", "a.b.c", "x.y.z")}
    # A column of the whole name comes first.
    assert found == {"a.b": {"c": 3}, "a.b.c": 2, "x.y.z": 4}


@pytest.mark.parametrize(
    ("record", "how"),
    [
        ({}, "all"),
        ({"answer": None}, "all"),
        ({"answer": " "}, "all"),
        ({"answer": "72"}, "boxed"),
        ({"answer": r"\boxed{}"}, "boxed"),
        ({"answer": "####"}, {"after": "####"}),
        ({"answer": "none"}, "last_number"),
    ],
)
def test_a_row_without_a_gold_is_refused(record: dict[str, Any], how: Any) -> None:
    with pytest.raises(DataError, match="there is no gold answer"):
        gold_answer(record, GoldConfig.model_validate({"extract": how}))


def test_without_the_section_there_is_no_gold() -> None:
    assert gold_answer({"answer": "72"}, None) is None
