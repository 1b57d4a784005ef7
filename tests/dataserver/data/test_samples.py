"""A sample id names a row and its content; the gold answer never leaves the server."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataserver.dataserver_cases import make_config, write_rows
from posttrain.conversation.messages import Conversation
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import GoldConfig, PromptColumnsConfig
from posttrain.dataserver.data.loading import load_datasets
from posttrain.dataserver.data.samples import (
    Samples,
    gold_answer,
    last_user_text,
    parse_prompt,
    prompt_columns,
    wire_messages,
)
from posttrain.dataserver.data.sampling import Slot, split_rows
from posttrain.errors import DataError

TRICKY = "a:b: ünï"
"""A data set name that looks like part of a sample id."""


def serve(config: DataserverConfig) -> Samples:
    datasets = load_datasets(config, lambda line: None)
    return Samples(config, datasets, split_rows(config, datasets))


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    folder = tmp_path_factory.mktemp("data")
    write_rows(folder / "sums.jsonl", [{"prompt": f"question {n}", "answer": f"gold-{n}"} for n in range(20)])
    talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}]
    write_rows(folder / "talk.jsonl", [{"messages": talk, "tools": [{"name": "add"}], "answer": 7}])
    datasets = {
        "sums": {"validation_fraction": 0.2, "system": "Be short."},
        TRICKY: {"path": "talk.jsonl", "gold": {"column": "answer"}},
    }
    return serve(make_config(folder, datasets))


def test_a_sample_leads_back_to_its_row(samples: Samples) -> None:
    for slot in [Slot(5, "sums", 3), Slot(0, "sums", 19), Slot(2, TRICKY, 0)]:
        sample = samples.sample(slot)
        target = samples.target(sample.sample_id)
        assert (sample.dataset, sample.slot) == (target.dataset, slot.slot) == (slot.dataset, slot.slot)
        assert target.row.index == slot.index
        assert target.prompt == sample.messages[-1].content
        assert sample.sample_id == samples.sample_id(slot.dataset, slot.index)
    assert samples.target(samples.sample_id("sums", 3)).gold == "gold-3"
    assert samples.target(samples.sample_id(TRICKY, 0)).gold == 7


def test_the_gold_is_not_sent(samples: Samples) -> None:
    for index in range(20):
        sent = samples.sample(Slot(0, "sums", index)).model_dump_json()
        assert f"question {index}" in sent
        assert "gold" not in sent


def test_the_messages_are_sent_with_system_and_tools(samples: Samples) -> None:
    sums, talk = samples.sample(Slot(0, "sums", 0)), samples.sample(Slot(0, TRICKY, 0))
    assert [(message.role, message.content) for message in sums.messages] == [
        ("system", "Be short."),
        ("user", "question 0"),
    ]
    assert sums.tools is None
    assert [message.role for message in talk.messages] == ["user", "assistant", "user"]
    assert talk.tools == [{"name": "add"}]
    assert samples.target(talk.sample_id).prompt == "r"


def test_a_row_knows_whether_it_is_held_out(samples: Samples) -> None:
    held_out = [samples.target(samples.sample_id("sums", index)).is_held_out for index in range(20)]
    assert held_out.count(True) == 4
    assert not samples.target(samples.sample_id(TRICKY, 0)).is_held_out


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset, key, digest: f"other:{key}:{digest}",
        lambda dataset, key, digest: f"{dataset}:21:{digest}",
        lambda dataset, key, digest: f"{dataset}:0{key}:{digest}",
        lambda dataset, key, digest: f"{dataset}:-1:{digest}",
        lambda dataset, key, digest: f"{dataset}:{key}",
        lambda dataset, key, digest: key,
        lambda dataset, key, digest: "",
    ],
)
def test_an_id_that_names_no_row_is_unknown(change, samples: Samples) -> None:
    with pytest.raises(DataError, match=r"^unknown sample"):
        samples.target(change(*samples.sample_id("sums", 3).split(":")))


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset, key, digest: f"{dataset}:5:{digest}",
        lambda dataset, key, digest: f"{dataset}:{key}:{digest.upper()}x",
        lambda dataset, key, digest: f"{dataset}:{key}:",
    ],
)
def test_an_id_that_names_another_content_is_stale(change, samples: Samples) -> None:
    with pytest.raises(DataError, match="has changed since it was sampled"):
        samples.target(change(*samples.sample_id("sums", 3).split(":")))


@given(st.text() | st.lists(st.sampled_from(["sums", TRICKY, "1", "²", "9" * 30, "\ud800", "-0"])).map(":".join))
def test_any_text_is_refused_in_printable_words(samples: Samples, text: str) -> None:
    with pytest.raises(DataError) as error:
        samples.target(text)
    assert str(error.value).isprintable() and len(str(error.value)) < 2000


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
        # Values other than text are used as they are.
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
    # A column with the full name takes precedence.
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
