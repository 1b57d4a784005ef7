"""Stray tags are removed from prompts, and the rest of them is not touched."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dataserver.dataserver_cases import GRADED, load, make_config, write_rows
from dataserver.offline.offline_cases import read_lines
from posttrain.conversation.messages import Conversation, Message, Role
from posttrain.dataserver.config.datasets import FileDataset
from posttrain.dataserver.data.sampling import Slot
from posttrain.dataserver.data.stray_tags import without_tags
from posttrain.dataserver.offline.grade import grade_file
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import DataError

NAMES = ("think", "answer")


def stripped(text: str, role: Role = "user") -> str:
    (message,) = without_tags(Conversation((Message(role, text),)), NAMES).messages
    return message.content


@pytest.mark.parametrize(
    ("text", "user", "assistant"),
    [
        ("1 + 1?", "1 + 1?", "1 + 1?"),
        (" as it was ", " as it was ", " as it was "),
        ("<think>\nHm.\n</think>\n1 + 1?", "Hm.\n\n1 + 1?", "1 + 1?"),
        ("1 + 1? <think>", "1 + 1?", "1 + 1?"),
        ("</think>1 + 1?", "1 + 1?", "1 + 1?"),
        ("<THINK >a</Think>b<answer/>", "ab", "b"),
        ("<think>a<answer>b</think>c</answer>d", "abcd", "cd"),
        ("<think>a<think>b</think>c</think>d", "abcd", "cd"),
        ("a<answer>b<think>c</think>d", "abcd", "abcd"),
        ("a <b>bold</b> <thinking> 1 < 2", "a <b>bold</b> <thinking> 1 < 2", "a <b>bold</b> <thinking> 1 < 2"),
    ],
)
def test_tags_go_and_text_stays_except_for_the_reasoning_of_earlier_turns(text: str, user: str, assistant: str):
    assert stripped(text) == stripped(text, "system") == user
    assert stripped(text, "assistant") == assistant


@given(st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", "a", " ", "<"])).map("".join))
def test_what_is_left_holds_no_tag_unless_removing_one_made_it(text: str):
    plain = text.replace("<think>", "").replace("</think>", "").replace("<answer>", "").replace("</answer>", "")
    if plain.strip():
        assert stripped(text) == (plain if plain == text else plain.strip())
    assert len(stripped(text, "assistant")) <= len(plain)


def test_a_million_characters_of_tags_are_read_in_one_pass():
    assert stripped("<think>" * 150_000 + "a", "assistant") == "a"
    assert stripped("<think></answer>" * 70_000 + "a</think>b", "assistant") == "b"


ROWS = [
    {"prompt": "<think>Hm.</think> 1 + 1?", "answer": "2"},
    {"prompt": "2 + 2?", "answer": "4"},
    {
        "messages": [
            {"role": "system", "content": "Use <think>."},
            {"role": "user", "content": "<answer>1?</answer>"},
            {"role": "assistant", "content": "<think>no</think>1", "reasoning_content": "<think>kept</think>"},
            {"role": "user", "content": "2?"},
        ],
        "answer": "2",
    },
]


def test_prompts_are_asked_and_counted_without_tags(tmp_path: Path):
    write_rows(tmp_path / "sums.jsonl", ROWS)
    told: list[str] = []
    config = make_config(tmp_path, {"sums": {"strip_tags": ["think", "answer"], "system": "Say <think>."}})
    for _ in range(2):  # the second time from the cache
        samples = Loaded.read(config, told.append).samples
        assert told[-1] == f"{tmp_path}/sums.jsonl: prompts with tags removed (think, answer): 2"
    asked = [[each.content for each in samples.sample(Slot(0, "sums", row)).messages] for row in range(3)]
    assert asked == [["Say <think>.", "Hm. 1 + 1?"], ["Say <think>.", "2 + 2?"], ["Use .", "1?", "1", "2?"]]
    assert samples.sample(Slot(0, "sums", 2)).messages[2].reasoning_content == "<think>kept</think>"
    assert samples.target(samples.sample_id("sums", 0)).prompt == "Hm. 1 + 1?"


def test_a_prompt_of_nothing_but_tags_is_a_bad_record(tmp_path: Path):
    file = write_rows(tmp_path / "sums.jsonl", [*ROWS, {"prompt": "<think> </think>", "answer": "1"}])
    with pytest.raises(DataError, match=rf"{file}:4: the prompt has a user message with nothing but tags"):
        load(file, strip_tags=["think"])
    assert len(load(file)) == 4


def test_a_completion_names_its_row_by_the_prompt_with_or_without_the_tags(tmp_path: Path):
    write_rows(tmp_path / "sums.jsonl", ROWS)
    prompts = ["<think>Hm.</think> 1 + 1?", "Hm. 1 + 1?"]
    write_rows(tmp_path / "c.jsonl", [{"prompt": prompt, "completion": "2"} for prompt in prompts])
    config = make_config(tmp_path, {"sums": {"strip_tags": ["think"]}}, limits={"workers": 1})
    grade_file(config, tmp_path / "c.jsonl", tmp_path / "graded.jsonl")
    assert [line["reward"] for line in read_lines(tmp_path / "graded.jsonl")] == [1.0, 1.0]


@pytest.mark.parametrize("name", ["<think>", "", "a b", "think|a"])
def test_a_name_is_that_of_a_tag(name: str):
    with pytest.raises(ValidationError):
        FileDataset.model_validate({"path": "a.jsonl", **GRADED, "strip_tags": [name]})
