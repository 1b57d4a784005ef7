"""Bad records: each is reported with its file and line before anything is trained or written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from posttrain.cli.sft import main

Refusal = Callable[..., str]

GOOD = b'{"prompt": "1 + 1?", "completion": "2"}\n'
CALLED = b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [%s]}]}'

# What is wrong: a line of a .jsonl file, and the message.
BAD_RECORDS = {
    "broken JSON": (b'{"prompt": "q"', "not JSON at column 15: Expecting ',' delimiter"),
    "an array": (b'["q", "a"]', "not a JSON object but an array"),
    "a key twice": (
        b'{"prompt": "q", "prompt": "r", "completion": "a"}',
        "key 'prompt' appears more than once in one object",
    ),
    "NaN": (b'{"prompt": "q", "completion": "a", "weight": NaN}', "NaN is not JSON; leave the value out or write null"),
    "broken UTF-8": (b'{"prompt": "caf\xe9", "completion": "a"}', "not UTF-8 at byte 16 (0xe9)"),
    "half a character": (
        rb'{"prompt": "q", "completion": "\ud83d"}',
        "completion[0]: content holds a lone surrogate at character 0",
    ),
    "other columns": (
        b'{"question": "q", "answer": "a"}',
        "needs columns 'messages' or 'prompt' and 'completion', but has 'question', 'answer'; the `columns` "
        "section can rename them",
    ),
    "no columns": (
        b"{}",
        "needs columns 'messages' or 'prompt' and 'completion', but has no columns at all; the `columns` section can "
        "rename them",
    ),
    "an answer that is null": (
        b'{"prompt": "q", "completion": null}',
        "needs columns 'messages' or 'prompt' and 'completion', but has 'prompt', 'completion' (null); the `columns` "
        "section can rename them",
    ),
    "an empty answer": (b'{"prompt": "q", "completion": " "}', "completion is empty"),
    "an empty question": (b'{"prompt": "", "completion": "a"}', "prompt is empty"),
    "a number for text": (
        b'{"prompt": "q", "completion": 4}',
        "completion must be text or a list of messages, not int",
    ),
    "text for messages": (
        b'{"messages": "hello"}',
        "messages is text, but not the JSON text of a list: not JSON at column 1: Expecting value",
    ),
    "no messages": (b'{"messages": []}', "messages is an empty list"),
    "an unknown role": (
        b'{"messages": [{"role": "bot", "content": "a"}]}',
        "messages[0]: role must be one of system, user, assistant, tool, not 'bot'",
    ),
    "an unknown key of a message": (
        b'{"messages": [{"role": "user", "contnt": "q"}]}',
        "messages[0]: unknown key 'contnt'; a message can contain content, id, index, name, reasoning, "
        "reasoning_content, role, tool_call_id, tool_calls, train, weight",
    ),
    "a system message in the middle": (
        b'{"messages": [{"role": "user", "content": "q"}, {"role": "system", "content": "s"}]}',
        "messages[1]: a system message can only come first",
    ),
    "no answer": (
        b'{"messages": [{"role": "user", "content": "q"}]}',
        "there is no assistant message to learn from",
    ),
    "an empty last answer": (
        b'{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": ""}]}',
        "the answer is empty",
    ),
    "no answer that may be trained": (
        b'{"messages": [{"role": "assistant", "content": "a", "train": false}]}',
        "no assistant message may be trained: all have train: false",
    ),
    "a tool call with broken arguments": (
        CALLED % rb'{"name": "add", "arguments": "{\"a\": }"}',
        "messages[1]: arguments of tool call 'add' are not valid JSON: Expecting value: line 1 column 7 (char 6)",
    ),
    "a tool call without a name": (
        CALLED % b'{"arguments": {}}',
        "messages[1]: name of a tool call must be a string, not null",
    ),
    "a negative weight": (
        b'{"prompt": "q", "completion": "a", "weight": -1}',
        "weight must be a number from 1e-06 to 1e+06, not '-1'",
    ),
    "a weight of 0": (
        b'{"prompt": "q", "completion": "a", "weight": 0}',
        "weight must be a number from 1e-06 to 1e+06, not '0'; leave the row out instead",
    ),
    "a weight in words": (
        b'{"prompt": "q", "completion": "a", "weight": "much"}',
        "weight must be a number from 1e-06 to 1e+06, not 'much'",
    ),
    "a weight of true": (
        b'{"prompt": "q", "completion": "a", "weight": true}',
        "weight must be a number from 1e-06 to 1e+06, not 'True'",
    ),
}


@pytest.mark.parametrize(("line", "fault"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_a_bad_record_is_told_with_its_file_and_line_and_the_way_out(
    line: bytes, fault: str, folder: Path, refusal: Refusal
):
    file = folder / "words.jsonl"
    file.write_bytes(GOOD + line + b"\n" + GOOD)
    message = refusal("run.yaml", "--dry-run")
    assert message.splitlines() == [
        f"{file} has 1 bad record:",
        f"  {file}:2: {fault}",
        "correct them, or skip them with on_bad_record: skip",
    ]


@pytest.mark.parametrize("start", [["--dry-run"], []], ids=["dry run", "start"])
def test_all_bad_records_of_a_file_are_told_at_once(start: list[str], folder: Path, refusal: Refusal):
    file = folder / "words.jsonl"
    file.write_bytes(b"".join(line + b"\n" + GOOD for line, _ in BAD_RECORDS.values()))
    head, *faults, more, advice = refusal("run.yaml", *start).splitlines()
    assert head == f"{file} has 26 bad records:"
    # A good line follows each bad one, so the bad lines have odd numbers; twenty are shown.
    assert faults == [
        f"  {file}:{number}: {fault}" for number, (_, fault) in zip(range(1, 40, 2), BAD_RECORDS.values(), strict=False)
    ]
    assert (more, advice) == ("  ... and 6 more", "correct them, or skip them with on_bad_record: skip")


def test_bad_records_are_left_out_and_counted_where_the_config_says_so(folder: Path):
    (folder / "words.jsonl").write_bytes(GOOD + b"{}\n" + GOOD + b"[]\n")
    result = CliRunner().invoke(main, ["run.yaml", "--set", "on_bad_record=skip", "--dry-run"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    (counts,) = [line.split() for line in result.stderr.splitlines() if line.split()[:2] == ["words", "4"]]
    assert counts[:6] == ["words", "4", "2", "0", "0", "2"]  # 4 read, 2 bad, 0 dropped, 0 cut, 2 rows


@pytest.mark.parametrize("start", [["--dry-run"], []], ids=["dry run", "start"])
def test_a_file_without_a_usable_record_is_refused_also_where_bad_ones_are_left_out(
    start: list[str], folder: Path, refusal: Refusal
):
    file = folder / "words.jsonl"
    file.write_bytes(b"{}\n")
    message = refusal("run.yaml", "--set", "on_bad_record=skip", *start)
    assert message.startswith(f"{file} has 1 bad record and no usable one:\n  {file}:1: needs columns 'messages' or ")


def test_bad_records_of_all_data_sets_are_told_at_once(folder, refusal):
    for name in ("sums", "words"):
        (folder / f"{name}.jsonl").write_text('{"prompt": "1 + 1", "completion": ""}\n')
    message = refusal("run.yaml", "--dry-run")
    assert "sums.jsonl:1: " in message
    assert "words.jsonl:1: " in message
