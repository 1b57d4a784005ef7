"""ShareGPT rows, compared with what TRL's `maybe_convert_to_chatml` makes of them."""

import json
import random
from copy import deepcopy

import pytest
from trl.data_utils import maybe_convert_to_chatml

from posttrain.conversation.messages import Conversation, Message, ToolCall
from posttrain.data.formats.sharegpt import SHAREGPT
from posttrain.data.records import Columns, parse_record
from posttrain.errors import DataError

SENDERS = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant", "observation": "tool"}
TEXTS = [
    "",
    " ",
    "hello",
    "<|im_end|>",
    "<|im_start|>system\nobey",
    "\n\nHuman: a",
    "é\u2028",
    '{"from": "gpt"}',
    "{x}",
]


def read(row) -> Conversation:
    return parse_record(SHAREGPT.convert(row), Columns(), require_answer=False)[0]


def some_row(chance: random.Random) -> dict:
    senders = chance.choices(list(SENDERS), k=chance.randrange(1, 6))
    if chance.random() < 0.2:
        senders.insert(chance.choice([0, 0, 1]), "system")
    if chance.random() < 0.1:
        senders[chance.randrange(len(senders))] = chance.choice(["narrator", "", "Human"])
    turns = [{"from": sender, "value": chance.choice(TEXTS)} for sender in senders]
    if chance.random() < 0.05:
        turns[-1]["value"] = chance.choice([None, 3, ["a"]])
    return {chance.choice(["conversations", "messages"]): turns, "id": 7}


def must_be_refused(turns: list[dict]) -> bool:
    known = {*SENDERS, "system"}
    return any(turn["from"] not in known or not isinstance(turn["value"], str) for turn in turns) or "system" in [
        turn["from"] for turn in turns[1:]
    ]


def test_ten_thousand_rows_say_what_trl_reads_in_them():
    chance, refused = random.Random(0), 0
    for _ in range(10_000):
        row = some_row(chance)
        turns = next(value for value in row.values() if isinstance(value, list))
        expected = maybe_convert_to_chatml(deepcopy(row))["messages"]
        if must_be_refused(turns):
            refused += 1
            with pytest.raises(DataError):
                read(row)
            continue
        roles = {**SENDERS, "system": "system"}
        assert [(each.role, each.content) for each in read(row).messages] == [
            (roles[each["role"]], each["content"]) for each in expected
        ]
    assert 1_000 < refused < 4_000


def test_a_system_column_and_tools_are_taken_along():
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    row = {
        "conversations": [
            {"from": "human", "value": "1 + 2?"},
            {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1, "b": 2}}'},
            {"from": "observation", "value": "3"},
            {"from": "gpt", "value": "It is 3."},
        ],
        "system": "Add.",
        "tools": json.dumps(tools),
    }
    assert read(row) == Conversation(
        (
            Message("system", "Add."),
            Message("user", "1 + 2?"),
            Message("assistant", "", tool_calls=(ToolCall("add", {"a": 1, "b": 2}),)),
            Message("tool", "3"),
            Message("assistant", "It is 3."),
        ),
        tuple(tools),
    )


def test_two_system_messages_are_refused():
    row = {"conversations": [{"from": "system", "value": "a"}, {"from": "human", "value": "b"}], "system": "c"}
    with pytest.raises(DataError, match="system message can only come first"):
        read(row)


def test_a_pair_has_its_prompt_in_the_conversation():
    row = {
        "conversations": [{"from": "human", "value": "q"}],
        "chosen": {"from": "gpt", "value": "good"},
        "rejected": {"from": "gpt", "value": "bad"},
    }
    assert SHAREGPT.convert(row) == {
        "prompt": [{"role": "user", "content": "q"}],
        "chosen": [{"role": "assistant", "content": "good"}],
        "rejected": [{"role": "assistant", "content": "bad"}],
    }


def test_a_kto_tag_is_the_label():
    row = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "kto_tag": False}
    assert SHAREGPT.convert(row)["label"] is False


def test_a_turn_may_be_left_out_of_the_loss():
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "weight": 0}]
    assert read({"conversations": turns}).messages[1] == Message("assistant", "a", train=False)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "q"}]},
        {"prompt": "q", "completion": "a", "conversations": [{"from": "human", "value": "q"}]},
        {"conversations": []},
        {"conversations": "text"},
    ],
)
def test_rows_in_the_toolkits_own_columns_are_not_taken_for_it(row):
    assert not SHAREGPT.fits(row)
