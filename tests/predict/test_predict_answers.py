"""What is written for each answer, and that the output can be trained on."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from predict_cases import OTHER_TURNS, QUESTIONS, Task, require_ends

from posttrain.conversation.messages import Message
from posttrain.data.records import Columns
from posttrain.data.sources import open_data

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def test_every_row_gets_one_answer_in_the_order_of_the_input(task: Task, run: Callable):
    run(task.config, task.ask(), task.output, "--weights", "base")
    answers = task.answers()
    places = [(answer["file"], answer["line"], answer["row"], answer["sample"]) for answer in answers]
    assert places == [("in.jsonl", line, line - 1, 0) for line in range(1, 7)]
    assert [answer["messages"][0]["content"] for answer in answers[:2]] == [row["prompt"] for row in QUESTIONS[:2]]
    assert {answer["stop_reason"] for answer in answers} == {"length"}
    assert {answer["tokens"] for answer in answers} == {8}
    assert not task.partial.exists()


def test_the_same_prompt_twice_is_answered_twice(task: Task, run: Callable):
    run(task.config, task.ask(), task.output, "--weights", "base", "--set", "generation.temperature=1")
    assert task.said()[1] != task.said()[4]
    run(task.config, task.ask(), task.folder / "greedy.jsonl", "--weights", "base")
    greedy = task.said(task.folder / "greedy.jsonl")
    assert greedy[1] == greedy[4]


def test_several_answers_to_a_prompt_are_numbered_and_differ(task: Task, run: Callable):
    options = ["--set", "generation.temperature=1", "--set", "generation.n=6"]
    run(task.config, task.ask(QUESTIONS[:2]), task.output, "--weights", "base", *options)
    places = [(answer["row"], answer["sample"]) for answer in task.answers()]
    assert places == [(row, sample) for row in (0, 1) for sample in range(6)]
    assert len(set(task.said())) == 12


def test_another_seed_gives_other_samples(task: Task, run: Callable):
    options = ["--weights", "base", "--set", "generation.temperature=1"]
    run(task.config, task.ask(), task.output, *options)
    run(task.config, task.ask(), task.folder / "other.jsonl", *options, "--set", "generation.seed=1")
    assert not set(task.said()) & set(task.said(task.folder / "other.jsonl"))


def test_the_answer_that_the_data_hold_is_kept_as_the_reference(task: Task, run: Callable):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    calling = {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]}
    rows = [*QUESTIONS, {"messages": [{"role": "user", "content": "add 1"}, calling]}]
    run(task.config, task.ask(rows), task.output, "--weights", "base")
    written = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert [answer.get("reference") for answer in task.answers()] == [
        None,
        None,
        "She has 3.",
        "7",
        None,
        None,
        written,
    ]


def test_the_model_is_not_shown_the_reference(task: Task, run: Callable):
    rows = [{"prompt": "one two"}, {"prompt": "one two", "completion": "three"}]
    run(task.config, task.ask(rows), task.output, "--weights", "base")
    assert task.said()[0] == task.said()[1]


def test_a_tool_result_at_the_end_is_answered_and_not_dropped(task: Task, run: Callable):
    asked = [
        {"role": "user", "content": "add 1 and 2"},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]},
        {"role": "tool", "content": "3"},
    ]
    run(task.config, task.ask([{"messages": asked, "tools": [TOOL]}]), task.output, "--weights", "base")
    [answer] = task.answers()
    assert [message["role"] for message in answer["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert answer["messages"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert answer["tools"] == [TOOL]


def test_log_probabilities_come_with_their_tokens(task: Task, run: Callable):
    run(task.config, task.ask(), task.output, "--weights", "base", "--set", "generation.logprobs=true")
    for answer in task.answers():
        assert len(answer["logprobs"]) == len(answer["token_ids"]) == 8
        assert max(answer["logprobs"]) <= 0


def test_answers_are_training_records(task: Task, run: Callable):
    rows = [
        {"prompt": "Ünïcode 円 \U0001f600  \u2028 and <|im_end|> typed by a user"},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}], "tools": [TOOL]},
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "train": False},
                {"role": "user", "content": "c", "name": "Anna"},
            ]
        },
    ]
    run(task.config, task.ask(rows), task.output, "--weights", "base")
    records = open_data(task.output, Columns()).read("error", require_answer=True).records
    asked = open_data(task.folder / "in.jsonl", Columns()).read("error", require_answer=False).records
    for before, after, text in zip(asked, records, task.said(), strict=True):
        assert after.conversation.messages == (*before.conversation.messages, Message("assistant", text))
        assert after.conversation.tools == before.conversation.tools


def ending_at(model: Path, folder: Path, ids: list[int]) -> Path:
    """A copy of the model whose answers end at any of `ids`."""
    shutil.copytree(model, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return folder


@pytest.fixture
def ended(task: Task, run: Callable, sharp_model: Path) -> Task:
    """A task whose first answer is empty and whose second ends after 3 tokens."""
    run(task.config, task.ask(), task.folder / "free.jsonl", "--weights", "base", "--set", "generation.logprobs=true")
    first, second = (answer["token_ids"] for answer in task.answers(task.folder / "free.jsonl")[:2])
    task.change("model", name=str(ending_at(sharp_model, task.folder / "ending", [first[0], second[2]])))
    return task


def test_an_empty_answer_is_written_and_told(ended: Task, run: Callable):
    result = run(ended.config, ended.folder / "in.jsonl", ended.output, "--weights", "base")
    assert ended.said()[0] == ""
    assert ended.answers()[0]["tokens"] == 1
    told = next(line for line in result.stderr.splitlines() if line.startswith("6 answers: "))
    ends = sum(answer["stop_reason"] == "end" for answer in ended.answers())
    assert told == (
        f"6 answers: {ends} ended by the model, {6 - ends} cut at max_new_tokens, 1 empty, so not usable for training"
    )
    left = open_data(ended.output, Columns()).read("skip", require_answer=True)
    assert [record.line for record in left.records] == [2, 3, 4, 5, 6]


def test_the_end_token_is_counted_but_not_written(ended: Task, run: Callable):
    run(ended.config, ended.folder / "in.jsonl", ended.output, "--weights", "base")
    free, answer = ended.answers(ended.folder / "free.jsonl")[1], ended.answers()[1]
    assert (answer["stop_reason"], answer["tokens"]) == ("end", 3)
    text = answer["messages"][-1]["content"]
    assert text and free["messages"][-1]["content"].startswith(text)


def test_an_answer_is_written_up_to_its_stop_string(task: Task, run: Callable):
    run(task.config, task.ask(), task.output, "--weights", "base")
    whole = task.said()[0]
    middle = next(char for char in whole[2:] if char.isascii() and char.isalnum())
    stop = f'generation.stop=["{middle}"]'
    run(task.config, task.ask(), task.output, "--weights", "base", "--overwrite", "--set", stop)
    assert task.said()[0] == whole[: whole.index(middle)]
    assert task.answers()[0]["stop_reason"] == "stop"


@pytest.mark.parametrize(("template", "ends"), [("chatml", {1, 2}), (OTHER_TURNS, {0, 1, 2})], ids=["chatml", "own"])
def test_a_control_token_that_begins_a_turn_ends_an_answer_and_is_no_part_of_it(
    task: Task, run: Callable, tiny_model: Path, template: str, ends: set[int]
):
    # For a random model all 384 tokens are about equally likely: 100 answers of up to 60 have each a few times.
    task.change("model", name=str(tiny_model))
    task.change("chat", template=template)
    task.change("generation", n=100, temperature=1.0, max_new_tokens=60, batch_size=100, logprobs=True)
    run(task.config, task.ask(QUESTIONS[:1]), task.output, "--weights", "base")
    require_ends(task, ends)
