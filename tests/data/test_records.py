"""Parsing rows with different columns as conversations."""

from posttrain.conversation.messages import Conversation, Message
from posttrain.data.records import Columns, parse_record

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
    # Unless named in `columns`, `system` is ignored like any other column.
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
