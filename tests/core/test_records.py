"""Rows as conversations, whichever columns they came in."""

import pytest

from toolkit.core.messages import Conversation, Message
from toolkit.core.records import Columns, parse_record
from toolkit.errors import ConfigError, DataError

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
SYSTEM = {"role": "system", "content": "s"}
TURNS = (Message("user", "q"), Message("assistant", "a"))
TOOL = {"type": "function", "function": {"name": "f"}}


def parse(row, require_answer=True, **columns) -> tuple[Conversation, float]:
    return parse_record(row, Columns(**columns), require_answer=require_answer)


def test_messages_are_taken_as_they_are():
    assert parse({"messages": [USER, ANSWER]}) == (Conversation(TURNS), 1.0)


def test_a_prompt_and_a_completion_become_a_user_and_an_assistant_turn():
    assert parse({"prompt": "q", "completion": "a"}) == (Conversation(TURNS), 1.0)


def test_columns_can_be_renamed():
    row = {"question": "q", "answer": "a", "loss_factor": 0.5, "prompt": "something else"}
    assert parse(row, prompt="question", completion="answer", weight="loss_factor") == (
        Conversation(TURNS),
        0.5,
    )


def test_columns_that_nobody_named_are_passed_over():
    assert parse({"id": 7, "source": None, "messages": [USER, ANSWER], "prompt_id": "x"})[0].messages == TURNS


def test_messages_count_where_a_prompt_is_there_too():
    assert parse({"prompt": "other", "completion": "other", "messages": [USER, ANSWER]})[0].messages == TURNS


def test_columns_that_are_null_count_as_absent():
    row = {"messages": None, "tools": None, "weight": None, "system": None, "prompt": "q", "completion": "a"}
    assert parse(row, system="system") == (Conversation(TURNS), 1.0)


def test_a_prompt_may_be_messages_of_which_no_answer_is_trained():
    row = {"prompt": [SYSTEM, USER, ANSWER, {"role": "user", "content": "q2"}], "completion": "a2"}
    assert parse(row)[0].messages == (
        Message("system", "s"),
        Message("user", "q"),
        Message("assistant", "a", train=False),
        Message("user", "q2"),
        Message("assistant", "a2"),
    )


def test_a_completion_may_be_messages():
    call = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}]}
    result = {"role": "tool", "content": "1"}
    row = {"prompt": [USER], "completion": [call, result, ANSWER], "tools": [TOOL]}
    conversation, _ = parse(row)
    assert [turn.role for turn in conversation.messages] == ["user", "assistant", "tool", "assistant"]
    assert [turn.train for turn in conversation.messages] == [True] * 4
    assert conversation.tools == (TOOL,)


def test_a_system_column_goes_before_the_conversation():
    system = Message("system", "s")
    row = {"sys": "s", "prompt": "q", "completion": "a"}
    assert parse(row, system="sys")[0].messages == (system, *TURNS)
    assert parse({"sys": "s", "messages": [USER, ANSWER]}, system="sys")[0].messages == (system, *TURNS)
    # Without being named it is a column like any other.
    assert parse({"system": "s", "prompt": "q", "completion": "a"})[0].messages == TURNS


def test_lists_may_be_json_text_as_tables_keep_them():
    row = {
        "messages": '[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]',
        "tools": '[{"type": "function", "function": {"name": "f"}}]',
        "weight": "0.5",
    }
    assert parse(row) == (Conversation(TURNS, (TOOL,)), 0.5)


def test_text_is_kept_to_the_byte():
    text = "\0 <|im_end|>\r\n\u2028é\ufeff "
    assert [m.content for m in parse({"prompt": text, "completion": text})[0].messages] == [text, text]


def test_a_prompt_alone_will_do_where_no_answer_is_wanted():
    for row in ({"prompt": "q"}, {"prompt": "q", "completion": ""}, {"prompt": "q", "completion": []}):
        assert parse(row, require_answer=False)[0].messages == TURNS[:1]
    assert parse({"messages": [USER]}, require_answer=False)[0].messages == TURNS[:1]
    assert parse({"prompt": "q", "completion": "a"}, require_answer=False)[0].messages == TURNS


def test_an_answer_may_be_a_tool_call_or_reasoning_and_need_not_come_last():
    call = {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}}]}
    thought = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    for messages in ([USER, call], [USER, thought], [USER, ANSWER, USER]):
        assert len(parse({"messages": messages})[0].messages) == len(messages)


WRONG = {
    "no column": ({}, "wants 'messages' or 'prompt' and 'completion', has no columns at all"),
    "other columns": (
        {"question": "q", "answer": None},
        "wants 'messages' or 'prompt' and 'completion', has 'question', 'answer' \\(null\\); .*`columns`",
    ),
    "no completion": ({"prompt": "q", "completion": None}, "has 'prompt', 'completion' \\(null\\)"),
    "messages that are a number": ({"messages": 1}, "messages must be a list, not int"),
    "messages that are plain text": ({"messages": "hello"}, "messages is text, but not the JSON text of a list"),
    "no messages": ({"messages": []}, "messages is an empty list"),
    "a role nobody knows": ({"messages": [{"role": "bot", "content": ""}]}, r"messages\[0\]: role"),
    "a late system message": ({"messages": [USER, SYSTEM]}, r"messages\[1\]: a system message"),
    "a number for a prompt": ({"prompt": 1, "completion": "a"}, "prompt must be text or a list of messages, not int"),
    "an object for a completion": ({"prompt": "q", "completion": {}}, "completion must be text or a list"),
    "an empty prompt": ({"prompt": " \n", "completion": "a"}, "prompt is empty"),
    "an empty prompt list": ({"prompt": [], "completion": "a"}, "prompt is an empty list"),
    "an empty completion": ({"prompt": "q", "completion": "\n"}, "completion is empty"),
    "a fault in a prompt list": ({"prompt": [{"role": "user"}], "completion": "a"}, r"^prompt\[0\]: content"),
    "a fault in a completion list": ({"prompt": "q", "completion": [3]}, r"^completion\[0\]: "),
    "system in a completion": ({"prompt": "q", "completion": [SYSTEM, ANSWER]}, "begins with a system message"),
    "half a surrogate pair": ({"prompt": "q", "completion": "\ud800"}, "lone surrogate"),
    "two system messages": ({"sys": "x", "messages": [SYSTEM, USER, ANSWER]}, "two system messages: one in sys"),
    "a number for a system message": ({"sys": 1, "messages": [USER, ANSWER]}, "sys must be text, not int"),
    "tools that are no list": ({"messages": [USER, ANSWER], "tools": {}}, "tools must be a list"),
    "tools that are plain text": ({"messages": [USER, ANSWER], "tools": "f"}, "tools is text, but not the JSON"),
    "a question without answer": ({"messages": [USER]}, "no assistant message to learn from"),
    "answers that may not be trained": ({"messages": [USER, {**ANSWER, "train": False}]}, "all have train: false"),
    "an empty answer": ({"messages": [USER, {**ANSWER, "content": " "}]}, "the answer is empty"),
    "an empty last answer": ({"messages": [USER, ANSWER, USER, {**ANSWER, "content": ""}]}, "last answer is empty"),
    "weight true": ({"messages": [USER, ANSWER], "weight": True}, "weight must be a number .* not 'True'"),
    "weight 0": ({"messages": [USER, ANSWER], "weight": 0}, "not '0'; leave the row out instead"),
    "weight below 0": ({"messages": [USER, ANSWER], "weight": -1}, "from 1e-06 to 1e\\+06, not '-1'"),
    "weight without end": ({"messages": [USER, ANSWER], "weight": 1e999}, "not 'inf'"),
    "weight that is no number": ({"messages": [USER, ANSWER], "weight": float("nan")}, "not 'nan'"),
    "weight in words": ({"messages": [USER, ANSWER], "weight": "much"}, "not 'much'"),
    "weight as a list": ({"messages": [USER, ANSWER], "weight": [1]}, "weight must be a number"),
    "weight beyond floats": ({"messages": [USER, ANSWER], "weight": 10**400}, "weight must be a number"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_row_is_told_in_one_sentence(kind):
    row, reason = WRONG[kind]
    with pytest.raises(DataError, match=reason) as caught:
        parse(row, system="sys")
    assert len(str(caught.value)) < 250 and "\n" not in str(caught.value)


def test_a_fault_is_told_in_the_users_own_name_for_the_column():
    with pytest.raises(DataError, match=r"^conversations\[0\]: content is missing"):
        parse({"conversations": [{"role": "user"}]}, messages="conversations")
    with pytest.raises(DataError, match=r"^wants 'conversations' or 'prompt', has 'messages'"):
        parse({"messages": [USER]}, require_answer=False, messages="conversations")
    with pytest.raises(DataError, match=r"^wants 'prompt' and 'completion', has 'messages'"):
        parse({"messages": [USER]}, messages=None)


def test_of_many_columns_only_some_are_told():
    with pytest.raises(DataError, match="'c11' and 988 more; "):
        parse({f"c{index}": 1 for index in range(1000)})


def test_columns_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="text cannot stand for two things at once"):
        Columns(prompt="text", completion="text")
    with pytest.raises(ConfigError, match="at least one of messages and prompt"):
        Columns(messages=None, prompt=None)
