"""Rows that are not valid conversations, and the messages they cause."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.conversation.messages import Conversation
from posttrain.data.records import Columns, parse_record
from posttrain.errors import ConfigError, DataError

USER = {"role": "user", "content": "q"}


ANSWER = {"role": "assistant", "content": "a"}


SYSTEM = {"role": "system", "content": "s"}


def parse(row, require_answer=True, **columns) -> tuple[Conversation, float]:
    return parse_record(row, Columns(**columns), require_answer=require_answer)


WRONG = {
    "no column": ({}, "needs columns 'messages' or 'prompt' and 'completion', but has no columns at all"),
    "other columns": (
        {"question": "q", "answer": None},
        "needs columns 'messages' or 'prompt' and 'completion', but has 'question', 'answer' \\(null\\); .*`columns`",
    ),
    "no completion": ({"prompt": "q", "completion": None}, "has 'prompt', 'completion' \\(null\\)"),
    "messages that are a number": ({"messages": 1}, "messages must be a list, not int"),
    "messages that are plain text": (
        {"messages": "hello"},
        "messages is text, but not the JSON text of a list",
    ),
    "no messages": ({"messages": []}, "messages is an empty list"),
    "a role nobody knows": ({"messages": [{"role": "bot", "content": ""}]}, r"messages\[0\]: role"),
    "a late system message": ({"messages": [USER, SYSTEM]}, r"messages\[1\]: a system message"),
    "a number for a prompt": (
        {"prompt": 1, "completion": "a"},
        "prompt must be text or a list of messages, not int",
    ),
    "an object for a completion": ({"prompt": "q", "completion": {}}, "completion must be text or a list"),
    "an empty prompt": ({"prompt": " \n", "completion": "a"}, "prompt is empty"),
    "an empty prompt list": ({"prompt": [], "completion": "a"}, "prompt is an empty list"),
    "an empty completion": ({"prompt": "q", "completion": "\n"}, "completion is empty"),
    "a fault in a prompt list": ({"prompt": [{"role": "user"}], "completion": "a"}, r"^prompt\[0\]: content"),
    "a fault in a completion list": ({"prompt": "q", "completion": [3]}, r"^completion\[0\]: "),
    "system in a completion": (
        {"prompt": "q", "completion": [SYSTEM, ANSWER]},
        "begins with a system message",
    ),
    "half a surrogate pair": ({"prompt": "q", "completion": "\ud800"}, "lone surrogate"),
    "two system messages": (
        {"sys": "x", "messages": [SYSTEM, USER, ANSWER]},
        "two system messages: one in sys",
    ),
    "a number for a system message": ({"sys": 1, "messages": [USER, ANSWER]}, "sys must be text, not int"),
    "tools that are no list": ({"messages": [USER, ANSWER], "tools": {}}, "tools must be a list"),
    "tools that are plain text": (
        {"messages": [USER, ANSWER], "tools": "f"},
        "tools is text, but not the JSON",
    ),
    "a question without answer": ({"messages": [USER]}, "no assistant message to learn from"),
    "answers that may not be trained": (
        {"messages": [USER, {**ANSWER, "train": False}]},
        "all have train: false",
    ),
    "an empty answer": ({"messages": [USER, {**ANSWER, "content": " "}]}, "the answer is empty"),
    "an empty last answer": (
        {"messages": [USER, ANSWER, USER, {**ANSWER, "content": ""}]},
        "last answer is empty",
    ),
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["[]", "user"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "train", "tool_calls", "name", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    row=st.dictionaries(st.sampled_from(["messages", "prompt", "completion", "sys", "tools", "weight", "x"]), JSON),
    require_answer=st.booleans(),
)
def test_any_row_is_a_conversation_or_a_data_error(row, require_answer):
    try:
        conversation, weight = parse(row, require_answer, system="sys")
    except DataError as error:
        assert str(error)
    else:
        assert conversation.messages and 0 < weight <= 1e6


def test_a_fault_is_told_in_the_users_own_name_for_the_column():
    with pytest.raises(DataError, match=r"^conversations\[0\]: content is missing"):
        parse({"conversations": [{"role": "user"}]}, messages="conversations")
    with pytest.raises(DataError, match=r"^needs columns 'conversations' or 'prompt', but has 'messages'"):
        parse({"messages": [USER]}, require_answer=False, messages="conversations")
    with pytest.raises(DataError, match=r"^needs columns 'prompt' and 'completion', but has 'messages'"):
        parse({"messages": [USER]}, messages=None)


def test_of_many_columns_only_some_are_told():
    with pytest.raises(DataError, match="'c11' and 988 more; "):
        parse({f"c{index}": 1 for index in range(1000)})


def test_columns_that_contradict_each_other_are_refused():
    with pytest.raises(ConfigError, match="text cannot mean two things at once"):
        Columns(prompt="text", completion="text")
    with pytest.raises(ConfigError, match="at least one of messages and prompt"):
        Columns(messages=None, prompt=None)
