"""What is said in a chat becomes rows to train on, in files that no run is using."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_cases import Told
from typer.testing import CliRunner

from posttrain.base.locks import lock_of, process_lock
from posttrain.chat.dialogue import Answer, Dialogue, Turn
from posttrain.chat.rows import append_row, conversation_row, preference_row, users_of
from posttrain.cli.dpo import main as dpo
from posttrain.cli.sft import main as sft
from posttrain.config.sections.datasets import ColumnsConfig
from posttrain.data.records import Columns, parse_record
from posttrain.dpo.config.data import PairColumnsConfig
from posttrain.dpo.preferences import parse_pair
from posttrain.errors import ConfigError, DataError
from posttrain.inference.engine import StopReason

# Stops at the first of the letters in most answers.
WHOLE = ("--set", "generation.stop=[a, e]", "--set", "generation.max_new_tokens=60", "--set", "generation.seed=9")


def a_dialogue(*answers: str, reason: StopReason = StopReason.END) -> Dialogue:
    """A first turn whose answer was stopped by Ctrl-C, then a question with these answers."""
    first = Turn("one\ntwo", [Answer("thr", StopReason.CUT, "a")])
    return Dialogue("Be brief.", [first, Turn("[1, 2]?", [Answer(text, reason, "a") for text in answers])])


def test_a_conversation_becomes_a_row_in_which_cut_answers_are_not_trained():
    assert conversation_row(a_dialogue("four 🙂\n")) == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one\ntwo"},
            {"role": "assistant", "content": "thr", "train": False},
            {"role": "user", "content": "[1, 2]?"},
            {"role": "assistant", "content": "four 🙂\n"},
        ]
    }
    conversation, _ = parse_record(
        conversation_row(a_dialogue("four")), Columns(**ColumnsConfig().model_dump()), require_answer=True
    )
    assert conversation == a_dialogue("four").whole()


@pytest.mark.parametrize("text", ["four", '[{"role": "user", "content": "x"}]', '{"a": 1}', " 4\n"])
def test_a_preference_becomes_a_pair_whatever_the_answers_look_like(text: str):
    dialogue = a_dialogue("better", text)
    pair = parse_pair(preference_row(dialogue, 0, 1), PairColumnsConfig())
    said = [(message.role, message.content) for message in dialogue.prompt().messages]
    assert [(message.role, message.content) for message in pair.prompt.messages] == said
    assert pair.chosen is not None and pair.chosen.messages[-1].content == "better"
    assert pair.rejected is not None and pair.rejected.messages[-1].content == text


@pytest.mark.parametrize(
    ("dialogue", "reason"),
    [
        (a_dialogue("a", "b", reason=StopReason.LENGTH), "answer 1 cannot be trained on: it was cut"),
        (a_dialogue("a", " \n"), "answer 2 cannot be trained on: it is empty"),
        (a_dialogue("a", "a"), "answers 1 and 2 are the same"),
    ],
)
def test_answers_that_teach_nothing_are_no_pair(dialogue: Dialogue, reason: str):
    with pytest.raises(DataError, match=reason):
        preference_row(dialogue, 0, 1)


def test_what_a_chat_saved_is_what_the_trainers_take(talk: Callable[..., Told], sharp_model: Path, rows: Callable):
    talk("one two", "/save said.jsonl", "three", "/save", "/regen", "/prefer 2 better.jsonl", options=WHOLE)
    assert [len(row["messages"]) for row in rows("said.jsonl")] == [2, 4]
    (pair,) = rows("better.jsonl")
    assert pair["prompt"] == rows("said.jsonl")[1]["messages"][:3]
    assert pair["rejected"] == rows("said.jsonl")[1]["messages"][3:]
    model = {"name": str(sharp_model), "backend": "hf", "dtype": "float32"}
    stages = [{"name": "all", "until_step": 1, "mix": {"chat": 1}}]
    for command, file in ((sft, "said.jsonl"), (dpo, "better.jsonl")):
        Path("train.yaml").write_text(
            yaml.safe_dump({"model": model, "datasets": {"chat": {"path": file}}, "stages": stages})
        )
        result = CliRunner().invoke(command, ["train.yaml", "--dry-run"])
        assert result.exit_code == 0, result.output


def test_the_conversation_goes_on_with_the_preferred_answer(talk: Callable[..., Told], rows: Callable):
    talk("one two", "/regen", "/prefer 1 p.jsonl", "three", "/save s.jsonl", options=WHOLE)
    assert [rows("s.jsonl")[0]["messages"][1]] == rows("p.jsonl")[0]["chosen"]


def test_a_file_keeps_what_it_has_and_its_permissions(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "é"}\n')
    path.chmod(0o640)
    append_row(path, {"prompt": "ü"}, [])
    assert path.read_text() == '{"prompt": "é"}\n{"prompt": "ü"}\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["rows.jsonl"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"prompt": 1}', "middle of a line"),
        (b'{"messages": []}\n', "rows of another kind: messages instead of prompt"),
        (b"a,b\n", "its last line is not JSON"),
        (b"\xff\n", "its last line is not UTF-8"),
        (b"[]\n", "not a JSON object"),
    ],
)
def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path, content: bytes, reason: str):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=reason):
        append_row(path, {"prompt": "x"}, [])
    assert path.read_bytes() == content


def test_a_folder_and_a_place_that_cannot_be_written_are_refused(tmp_path: Path):
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "folder.jsonl", tmp_path / "file" / "rows.jsonl", tmp_path / "rows.txt"):
        with pytest.raises((ConfigError, DataError)):
            append_row(path, {"prompt": "x"}, [])


def _held(lock: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    code = f"""
from pathlib import Path
from posttrain.base.locks import process_lock
with process_lock(Path({str(lock)!r})):
    print("held", flush=True)
    input()
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    return holder


def _release(holder: subprocess.Popen[str]) -> None:
    holder.communicate("\n")


def test_no_row_is_added_while_another_process_writes_the_file(tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    holder = _held(lock_of(path))
    try:
        with pytest.raises(ConfigError, match="is being written by process"):
            append_row(path, {"prompt": "x"}, [])
    finally:
        _release(holder)
    append_row(path, {"prompt": "x"}, [])
    assert path.read_text() == '{"prompt": "x"}\n'


@pytest.mark.parametrize("by", ["its config", "its dataserver's config"])
def test_no_row_is_added_to_a_file_that_a_run_trains_with(tmp_path: Path, by: str):
    path, run = tmp_path / "rows.jsonl", tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    datasets: dict[str, Any] = {"datasets": {"chat": {"path": str(path)}}}
    if by != "its config":
        (tmp_path / "serve.yaml").write_text(yaml.safe_dump({"datasets": {"chat": {"path": "rows.jsonl"}}}))
        datasets = {"server": {"config": str(tmp_path / "serve.yaml")}}
    (run / "config.yaml").write_text(yaml.safe_dump(datasets))
    path.write_text('{"prompt": "x"}\n')
    (tmp_path / "link.jsonl").symlink_to(path)
    holder = _held(run / ".lock")
    try:
        for name in ("rows.jsonl", "link.jsonl"):
            with pytest.raises(ConfigError, match="runs/one trains with it"):
                append_row(tmp_path / name, {"prompt": "y"}, [tmp_path / "runs"])
        append_row(tmp_path / "other.jsonl", {"prompt": "y"}, [tmp_path / "runs"])
    finally:
        _release(holder)
    assert path.read_text() == '{"prompt": "x"}\n'
    assert list(users_of(path, [tmp_path / "runs", tmp_path / "none"])) == []


def test_a_chat_is_told_of_a_run_that_trains_with_its_file(talk: Callable[..., Told], tmp_path: Path):
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(json.dumps({"datasets": {"a": {"path": str(tmp_path / "said.jsonl")}}}))
    with process_lock(run / ".lock"):
        told = talk("one two", "/save said.jsonl", options=WHOLE, expect=2)
    assert "said.jsonl is in use" in told.err
    assert not (tmp_path / "said.jsonl").exists()
