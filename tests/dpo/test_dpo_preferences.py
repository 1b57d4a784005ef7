"""Parsing a row into a pair of conversations: which part is the prompt, and what cannot be a pair."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.conversation.messages import Conversation, Message
from posttrain.data.records import EmptyAnswerError
from posttrain.dpo.config.data import LabelledColumnsConfig, PairColumnsConfig
from posttrain.dpo.preferences import IdenticalAnswersError, Preference, make_pair, parse_labelled, parse_pair
from posttrain.errors import DataError


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "Be brief."}
CALL = assistant("", tool_calls=[{"name": "clock", "arguments": {}}])
RESULT = {"role": "tool", "content": "12:00"}


def pair(**row: Any) -> Preference:
    return parse_pair(row, PairColumnsConfig())


def told(conversation: Conversation | None) -> list[tuple[str, str, bool]]:
    """Role and content of each message, and whether it is trained."""
    assert conversation is not None
    return [(turn.role, turn.content, turn.train and turn.role == "assistant") for turn in conversation.messages]


def test_a_prompt_with_two_texts_is_a_pair():
    found = pair(prompt="2 + 2?", chosen="4", rejected="5", weight=0.5)
    assert told(found.prompt) == [("user", "2 + 2?", False)]
    assert told(found.chosen) == [("user", "2 + 2?", False), ("assistant", "4", True)]
    assert told(found.rejected) == [("user", "2 + 2?", False), ("assistant", "5", True)]
    assert found.weight == 0.5


SHAPES = {
    "a prompt of messages and two texts": {
        "prompt": [user("a"), assistant("b"), user("c")],
        "chosen": "d",
        "rejected": "e",
    },
    "answers as messages": {
        "prompt": [user("a"), assistant("b"), user("c")],
        "chosen": [assistant("d")],
        "rejected": [assistant("e")],
    },
    "two whole conversations": {
        "chosen": [user("a"), assistant("b"), user("c"), assistant("d")],
        "rejected": [user("a"), assistant("b"), user("c"), assistant("e")],
    },
    "two whole conversations beside their prompt": {
        "prompt": [user("a"), assistant("b"), user("c")],
        "chosen": [user("a"), assistant("b"), user("c"), assistant("d")],
        "rejected": [user("a"), assistant("b"), user("c"), assistant("e")],
    },
    "one answer and one whole conversation": {
        "prompt": [user("a"), assistant("b"), user("c")],
        "chosen": "d",
        "rejected": [user("a"), assistant("b"), user("c"), assistant("e")],
    },
    "answers as one message each": {
        "prompt": [user("a"), assistant("b"), user("c")],
        "chosen": assistant("d"),
        "rejected": assistant("e"),
    },
    "conversations as JSON text, as in a table": {
        "chosen": '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, '
        '{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]',
        "rejected": '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, '
        '{"role": "user", "content": "c"}, {"role": "assistant", "content": "e"}]',
    },
}


@pytest.mark.parametrize("row", SHAPES.values(), ids=SHAPES)
def test_every_shape_gives_the_same_pair_and_only_the_last_answer_is_trained(row: dict[str, Any]):
    before = [("user", "a", False), ("assistant", "b", False), ("user", "c", False)]
    found = pair(**row)
    assert [turn.content for turn in found.prompt.messages] == ["a", "b", "c"]
    assert told(found.chosen) == [*before, ("assistant", "d", True)]
    assert told(found.rejected) == [*before, ("assistant", "e", True)]


def test_labelled_answers_that_are_read_as_pairs_are_told_what_they_need():
    with pytest.raises(DataError) as refused:
        pair(prompt="a", completion="b", label=True)
    assert str(refused.value) == (
        "needs columns 'chosen' and 'rejected', but has 'prompt', 'completion', 'label'; for individually labelled "
        "answers, set `type: labelled`, which needs method.type: kto"
    )
    with pytest.raises(DataError, match="the `columns` section can rename them"):
        pair(prompt="a", completion="b")


def test_the_rejected_answer_is_the_last_assistant_turn_and_not_the_first_message():
    messages = [SYSTEM, user("Hello?")]
    found = pair(chosen=[*messages, assistant("Hello.")], rejected=[*messages, assistant("Go away.")])
    assert told(found.rejected) == [
        ("system", "Be brief.", False),
        ("user", "Hello?", False),
        ("assistant", "Go away.", True),
    ]
    assert [turn.role for turn in found.prompt.messages] == ["system", "user"]


def test_all_turns_after_the_common_beginning_are_the_answer():
    start = [user("time?")]
    found = pair(chosen=[*start, CALL, RESULT, assistant("noon")], rejected=[*start, assistant("no idea")])
    assert [flag for *_, flag in told(found.chosen)] == [False, True, False, True]
    assert len(found.prompt.messages) == 1


def test_a_turn_that_both_answers_begin_with_belongs_to_the_prompt():
    start = [user("time?"), CALL, RESULT]
    found = pair(prompt="time?", chosen=[CALL, RESULT, assistant("noon")], rejected=[CALL, RESULT, assistant("one")])
    assert len(found.prompt.messages) == len(start)
    assert [flag for *_, flag in told(found.chosen)] == [False, False, False, True]


def test_train_false_in_an_answer_is_kept_and_elsewhere_changes_nothing():
    start = [user("time?")]
    chosen = [*start, {**CALL, "train": False}, RESULT, assistant("noon")]
    found = pair(chosen=chosen, rejected=[*start, assistant("no idea")])
    assert [flag for *_, flag in told(found.chosen)] == [False, False, False, True]
    history = [user("a"), assistant("b", train=False), user("c")]
    other = [user("a"), assistant("b"), user("c")]
    assert len(pair(chosen=[*history, assistant("d")], rejected=[*other, assistant("e")]).prompt.messages) == 3


def test_tools_and_a_system_message_belong_to_both_sides():
    tools = [{"type": "function", "function": {"name": "clock"}}]
    columns = PairColumnsConfig(system="persona")
    row = {"prompt": "time?", "chosen": [CALL], "rejected": "no", "tools": tools, "persona": "A clock."}
    found = parse_pair(row, columns)
    for side in (found.prompt, found.chosen, found.rejected):
        assert side is not None
        assert side.tools == tuple(tools)
        assert side.messages[0] == Message("system", "A clock.")
    assert found.chosen is not None
    assert found.chosen.messages[-1].tool_calls[0].name == "clock"


def test_columns_can_have_other_names():
    columns = PairColumnsConfig(prompt="question", chosen="good", rejected="bad")
    found = parse_pair({"question": "a", "good": "b", "bad": "c", "prompt": "not this one"}, columns)
    assert told(found.chosen) == [("user", "a", False), ("assistant", "b", True)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"prompt": "a", "chosen": "b"},
            "needs columns 'chosen' and 'rejected', but has 'prompt', 'chosen'; the `columns`",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": None}, "'rejected' (null)"),
        ({"chosen": "b", "rejected": "c"}, "chosen is text, but there is no column 'prompt' for it to answer"),
        ({"prompt": " ", "chosen": "b", "rejected": "c"}, "prompt is empty"),
        ({"prompt": "a", "chosen": 7, "rejected": "c"}, "chosen must be text or a list of messages, not int"),
        (
            {"prompt": "a", "chosen": "b", "rejected": [{"role": "bot"}]},
            "rejected[0]: role must be one of system, user,",
        ),
        (
            {"prompt": "a", "chosen": "b", "rejected": [user("z"), assistant("c")]},
            "rejected is a complete conversation, but does not begin with prompt",
        ),
        (
            {"chosen": [user("good day"), assistant("b")], "rejected": [user("good night"), assistant("c")]},
            "the prompts differ at messages[0] (user), character 5: 'good day' vs. 'good night'",
        ),
        (
            {"chosen": [SYSTEM, user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]},
            "the prompts differ at messages[0]: system vs. user",
        ),
        (
            {"chosen": [user("a"), CALL, RESULT], "rejected": [user("a"), CALL, {**RESULT, "content": "1"}]},
            "the prompts differ at messages[2] (tool)",
        ),
        (
            {"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("b"), user("c"), assistant("d")]},
            "the chosen conversation is a prefix of the rejected one, so it has no answer of its own",
        ),
        ({"chosen": [assistant("b")], "rejected": [assistant("c")]}, "begin with an answer: there is no prompt"),
        (
            {"prompt": "a", "chosen": [assistant("b", train=False)], "rejected": "c"},
            "no assistant message may be trained",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "weight": 0}, "weight must be a number from 1e-06"),
    ],
)
def test_a_row_that_is_no_pair_is_told_by_its_first_fault(row: dict[str, Any], message: str):
    with pytest.raises(DataError) as refused:
        pair(**row)
    assert message in str(refused.value)
    assert not isinstance(refused.value, EmptyAnswerError | IdenticalAnswersError)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "chosen": "b", "rejected": "  "},
        {"prompt": "a", "chosen": "", "rejected": "c"},
        {"prompt": "a", "chosen": "b", "rejected": []},
        {"prompt": "a", "chosen": [assistant("")], "rejected": "c"},
        {"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant(" \n")]},
        {"chosen": [user("a"), assistant("b"), user("c"), assistant("d")],
         "rejected": [user("a"), assistant("b"), user("c"), assistant("")]},
    ],
)  # fmt: skip
def test_an_empty_answer_is_told_apart_from_a_fault(row: dict[str, Any]):
    with pytest.raises(EmptyAnswerError, match="empty"):
        pair(**row)


def test_equal_answers_are_told_apart_from_a_fault():
    with pytest.raises(IdenticalAnswersError, match="both answers are the same"):
        pair(prompt="a", chosen="b", rejected=[assistant("b", train=True)])
    assert pair(prompt="a", chosen="b", rejected="b ").weight == 1.0


def labelled(**row: Any) -> Preference:
    return parse_labelled(row, LabelledColumnsConfig())


@pytest.mark.parametrize("label", [True, 1, 1.0, "1", "true", "True", " TRUE "])
def test_a_good_answer_is_a_chosen_one(label: object):
    found = labelled(prompt="a", completion="b", label=label)
    assert told(found.chosen) == [("user", "a", False), ("assistant", "b", True)]
    assert found.rejected is None
    assert found.answers == [found.chosen]


@pytest.mark.parametrize("label", [False, 0, 0.0, "0", "false"])
def test_a_bad_answer_is_a_rejected_one(label: object):
    found = labelled(prompt="a", completion="b", label=label, weight=2)
    assert told(found.rejected) == [("user", "a", False), ("assistant", "b", True)]
    assert (found.chosen, found.weight) == (None, 2)


def test_of_whole_conversations_the_label_is_about_the_last_answer():
    found = labelled(messages=[user("a"), assistant("b"), user("c"), assistant("d")], label=True)
    assert [flag for *_, flag in told(found.chosen)] == [False, False, False, True]
    assert [turn.content for turn in found.prompt.messages] == ["a", "b", "c"]


def test_a_completion_of_several_messages_is_one_answer():
    found = labelled(prompt=[SYSTEM, user("time?")], completion=[CALL, RESULT, assistant("noon")], label=True)
    assert [flag for *_, flag in told(found.chosen)] == [False, False, True, False, True]
    assert len(found.prompt.messages) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "completion": "b"}, "there is no label: needs column 'label', but has 'prompt', 'completion'"),
        ({"prompt": "a", "completion": "b", "label": "good"}, "label must be true or false, or 1 or 0, not 'good'"),
        ({"prompt": "a", "completion": "b", "label": 0.5}, "not '0.5'"),
        ({"prompt": "a", "completion": "b", "label": 2}, "not '2'"),
        ({"messages": [assistant("b")], "label": 1}, "the conversation begins with its answer: there is no prompt"),
        ({"messages": [user("a"), assistant("b"), user("c")], "label": 1}, "does not end with an answer"),
    ],
)
def test_a_row_that_is_no_labelled_answer_is_told_by_its_first_fault(row: dict[str, Any], message: str):
    with pytest.raises(DataError) as refused:
        labelled(**row)
    assert message in str(refused.value)


TEXTS = st.text(alphabet="ab ", min_size=1, max_size=3).filter(str.strip)
TURNS = st.lists(st.tuples(TEXTS, TEXTS), max_size=3)


@given(TURNS, TEXTS, TEXTS, TEXTS)
def test_the_prompt_is_the_longest_beginning_that_both_share(turns, question: str, one: str, other: str):
    shared = [message for ask, answer in turns for message in (user(ask), assistant(answer))]
    row = {"chosen": [*shared, user(question), assistant(one)], "rejected": [*shared, user(question), assistant(other)]}
    if one == other:
        with pytest.raises(IdenticalAnswersError):
            pair(**row)
        return
    found = pair(**row)
    assert len(found.prompt.messages) == len(shared) + 1
    assert [turn.content for turn in found.prompt.messages] == [turn["content"] for turn in shared] + [question]
    for side, answer in ((found.chosen, one), (found.rejected, other)):
        trained = [(content, flag) for _, content, flag in told(side) if flag]
        assert trained == [(answer, True)]


def test_the_order_of_the_two_decides_which_is_preferred():
    one, other = (Conversation((Message("user", "a"), Message("assistant", text))) for text in "bc")
    found, swapped = make_pair(one, other, 1.0), make_pair(other, one, 1.0)
    assert told(found.chosen) == told(swapped.rejected) != told(swapped.chosen)
