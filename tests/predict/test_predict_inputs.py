"""Which inputs are read, and how bad ones are reported."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from predict_cases import QUESTIONS, Task

BASE = ("--weights", "base")


def refused(run: Callable, *arguments: str | Path) -> str:
    """The only error message of a run that is refused."""
    result = run(*arguments, *BASE, expect=2)
    assert result.stderr.count("error: ") == 1
    return result.stderr.split("error: ")[1].rstrip("\n")


def test_a_folder_is_answered_file_by_file(task: Task, run: Callable):
    task.ask(QUESTIONS[:2], "in/b.jsonl")
    task.ask([*QUESTIONS[2:], QUESTIONS[0]], "in/a.jsonl")
    (task.folder / "in" / "notes.txt").write_text("not data")
    result = run(task.config, task.folder / "in", task.folder / "out", *BASE)
    assert "skipped (only .jsonl files in a folder are read): notes.txt" in result.stderr
    assert sorted(path.name for path in (task.folder / "out").iterdir()) == ["a.jsonl", "b.jsonl"]
    for name, count in (("a.jsonl", 5), ("b.jsonl", 2)):
        answers = task.answers(task.folder / "out" / name)
        assert [(answer["file"], answer["line"]) for answer in answers] == [(name, line + 1) for line in range(count)]
    # The same prompt in two files gets the same greedy answer.
    assert task.said(task.folder / "out" / "a.jsonl")[4] == task.said(task.folder / "out" / "b.jsonl")[0]
    assert not (task.folder / "out.partial").exists()


def test_the_output_folder_and_those_above_it_are_made(task: Task, run: Callable):
    run(task.config, task.ask(), task.folder / "x" / "y" / "out.jsonl", *BASE)
    assert len(task.answers(task.folder / "x" / "y" / "out.jsonl")) == 6


def test_blank_lines_count_as_lines_and_columns_can_be_renamed(task: Task, run: Callable):
    rows = [json.dumps({"frage": "one"}), "", json.dumps({"frage": "two", "antwort": "three"})]
    columns = ("--set", "generation.columns={prompt: frage, completion: antwort}")
    run(task.config, task.ask(rows), task.output, *BASE, *columns)
    places = [(answer["line"], answer["row"], answer.get("reference")) for answer in task.answers()]
    assert places == [(1, 0, None), (3, 1, "three")]


@pytest.mark.parametrize("name", ["in.csv", "in.json", "in.jsonl.gz"])
def test_other_kinds_of_files_are_read_as_in_training(task: Task, run: Callable, name: str):
    path = task.folder / name
    if name.endswith(".csv"):
        path.write_text("prompt,completion\none,two\nthree,\n")
    elif name.endswith(".gz"):
        path.write_bytes(gzip.compress(b'{"prompt": "one", "completion": "two"}\n{"prompt": "three"}\n'))
    else:
        path.write_text('[{"prompt": "one", "completion": "two"}, {"prompt": "three"}]')  # both on line 1
    run(task.config, path, task.output, *BASE)
    assert [answer.get("reference") for answer in task.answers()] == ["two", None]


BAD = [
    {"prompt": "one"},
    "{broken",
    {"prompt": ""},
    {"text": "x"},
    {"messages": [{"role": "assistant", "content": "a"}]},
]


def test_bad_rows_are_all_told_with_their_lines_and_nothing_is_written(task: Task, run: Callable):
    path = task.ask(BAD[:4])
    message = refused(run, task.config, path, task.output)
    for line in (2, 3, 4):
        assert f"{path}:{line}: " in message
    assert "on_bad_record: skip" in message
    assert sorted(entry.name for entry in task.folder.iterdir()) == ["in.jsonl", "task.yaml"]


def test_bad_rows_can_be_left_out_and_the_others_keep_their_lines(task: Task, run: Callable):
    path = task.ask([*BAD, {"prompt": "two"}])
    result = run(task.config, path, task.output, *BASE, "--set", "on_bad_record=skip")
    assert [answer["line"] for answer in task.answers()] == [1, 6]
    for line in (2, 3, 4, 5):
        assert f"left out: {path}:{line}: " in result.stderr
    assert f"rows      2 in {path}, 4 left out" in result.stderr


def test_a_row_that_is_only_an_answer_is_a_bad_row(task: Task, run: Callable):
    message = refused(run, task.config, task.ask([QUESTIONS[0], BAD[4]]), task.output)
    assert "in.jsonl:2: there is no prompt before the answer" in message


def test_a_prompt_longer_than_the_training_allows_is_a_bad_row(task: Task, run: Callable):
    path = task.ask([{"prompt": "z"}, {"prompt": "q" * 90}])
    message = refused(run, task.config, path, task.output, "--set", "chat.max_length=90")
    # <|im_start|>, user in at most 4 tokens, newline, 90 letters, <|im_end|>, newline, and the assistant's header
    assert f"{path}:2: the prompt has" in message
    assert "tokens, more than chat.max_length: 90" in message
    assert f"{path}:1" not in message


def test_a_prompt_that_leaves_the_model_no_room_for_the_answer_is_a_bad_row(task: Task, run: Callable):
    path = task.ask([{"prompt": "q" * 900}, {"prompt": "z"}])
    run(task.config, path, task.output, *BASE, "--set", "generation.max_new_tokens=50")
    message = refused(run, task.config, path, task.folder / "b.jsonl", "--set", "generation.max_new_tokens=99")
    assert f"{path}:1: the prompt has" in message
    assert "with max_new_tokens: 99 that exceeds the model's 1000 positions" in message


def test_too_long_prompts_can_be_left_out(task: Task, run: Callable):
    path = task.ask([{"prompt": "q" * 2000}, {"prompt": "z"}])
    result = run(task.config, path, task.output, *BASE, "--set", "on_bad_record=skip")
    assert [answer["line"] for answer in task.answers()] == [2]
    assert f"left out: {path}:1: the prompt has" in result.stderr
    assert "no rows are left" in refused(run, task.config, task.ask([{"prompt": "q" * 2000}]), task.folder / "b.jsonl")


def test_a_conversation_that_the_tokenizers_template_refuses_is_a_bad_row(task: Task, run: Callable, sharp_model: Path):
    model = task.folder / "model"
    model.mkdir()
    for file in sharp_model.iterdir():
        (model / file.name).symlink_to(file)
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system role here') }}{% endif %}"
        "{{ m.content }}{{ eos_token }}{% endfor %}"
    )
    task.change("model", name=str(model))
    system = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
    path = task.ask([{"prompt": "one"}, system])
    message = refused(run, task.config, path, task.output, "--set", "chat.template=tokenizer")
    assert f"{path}:2: the chat template rejects the conversation: No system role here" in message
    run(task.config, path, task.output, *BASE, "--set", "chat.template=tokenizer", "--set", "on_bad_record=skip")
    assert [answer["line"] for answer in task.answers()] == [1]


def test_empty_files_are_told_all_at_once(task: Task, run: Callable):
    task.ask([], "in/a.jsonl")
    task.ask([{"prompt": "one"}], "in/b.jsonl")
    task.ask(["", " "], "in/c.jsonl")
    message = refused(run, task.config, task.folder / "in", task.folder / "out")
    assert "a.jsonl holds no records" in message and "c.jsonl holds no records" in message
    assert not (task.folder / "out").exists()


def test_paths_that_cannot_be_are_refused(task: Task, run: Callable):
    path = task.ask()
    (task.folder / "empty").mkdir()
    (task.folder / "folder.jsonl").mkdir()
    task.ask(QUESTIONS, "in/a.jsonl")
    for input_, output, reason in [
        ("none.jsonl", "out.jsonl", "there is no file or folder"),
        ("empty", "out", "there is no .jsonl file in"),
        ("in.jsonl", "folder.jsonl", "is a folder; if the input is a file, the output must be one too"),
        ("in", "in.jsonl", "is a file; if the input is a folder, the output must be one too"),
        ("in.jsonl", "in.jsonl", "is the input"),
        ("in", "in", "is the input"),
        ("in.jsonl", "in.jsonl/out.jsonl", "is a file, not a folder"),
        ("task.yaml", "out.jsonl", "cannot tell the format from the name"),
    ]:
        message = refused(run, task.config, task.folder / input_, task.folder / output, "--overwrite")
        assert reason in message, message
    assert path.read_bytes()
    assert not task.output.exists()
