"""The commands of a chat, and what becomes of wrong ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
from chat_cases import Told

from posttrain.chat.commands import COMMANDS


def test_help_lists_every_command(talk: Callable[..., Told]):
    told = talk("/help").err
    assert all(f"\n{command.usage} " in told for command in COMMANDS.values())
    assert "/quit" in told and "Ctrl-C" in told


def test_after_quit_nothing_is_read(talk: Callable[..., Told]):
    assert talk("one", "/quit", "/nonsense").out == talk("one").out


def test_a_line_may_go_on_in_the_next_one_and_begin_with_a_slash(talk: Callable[..., Told], rows: Callable):
    talk("//etc is\\", "  a folder", "/set max_new_tokens=60", "/regen", "/regen", "/save a.jsonl")
    assert rows("a.jsonl")[0]["messages"][0] == {"role": "user", "content": "/etc is\n  a folder"}


def test_empty_lines_are_no_questions(talk: Callable[..., Told]):
    assert talk("", "one", "   ", "").out == talk("one").out


def test_settings_are_changed_as_on_the_command_line(talk: Callable[..., Told]):
    changed = talk("/set temperature=0.5", "/set seed=9", "/set stop=[zz, qq]", "one")
    assert "temperature=0.5" in changed.err and "stop=['zz', 'qq']" in changed.err
    options = [("temperature", "0.5"), ("seed", "9"), ("stop", "[zz, qq]")]
    told = talk("one", options=tuple(part for key, value in options for part in ("--set", f"generation.{key}={value}")))
    assert told.out == changed.out


def test_a_system_message_is_set_and_removed(talk: Callable[..., Told]):
    plain, with_system = talk("one").out, talk("one", options=("--system", "Be brief.")).out
    assert plain != with_system
    assert talk("/system Be brief.", "one").out == with_system
    assert talk("/system Be brief.", "/system", "one").out == plain


def test_an_edited_question_is_asked_in_the_place_of_the_last_one(talk: Callable[..., Told]):
    assert talk("one", "two", "/edit three").out.split("\n")[2:] == talk("one", "three").out.split("\n")[1:]


def test_a_new_conversation_knows_nothing_of_the_last_one(talk: Callable[..., Told]):
    assert talk("one", "/new", "one").out == 2 * talk("one").out


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["/sett x=1"], "line 1: there is no command /sett; did you mean /set?"),
        (["one", "/"], "line 2: there is no command"),
        (["/undo"], "nothing was asked yet"),
        (["/regen"], "nothing was asked yet"),
        (["/edit x"], "nothing was asked yet"),
        (["/save a.jsonl"], "nothing was asked yet"),
        (["/prefer 1 a.jsonl"], "nothing was asked yet"),
        (["one", "/edit"], "/edit TEXT"),
        (["one", "/undo 2"], "/undo takes nothing"),
        (["/set temprature=1"], "did you mean temperature?"),
        (["/set temperature=-1"], "temperature: "),
        (["/set temperature"], "write it as key=value, such as /set seed=1"),
        (["/set temperature=0", "one", "/regen"], "line 3: at temperature 0 the answer would be the same"),
        (["one", "/prefer 1 a.jsonl"], "there is one answer"),
        (["one", "/regen", "/prefer"], "give the number"),
        (["one", "/regen", "/prefer 3 a.jsonl"], "there is no answer 3, only 1 to 2"),
        (["one", "/regen", "/prefer 0 a.jsonl"], "there is no answer 0"),
        (["one", "/regen", "/prefer 1 1 a.jsonl"], "over itself"),
        (["one", "/regen", "/regen", "/prefer 1 a.jsonl"], "over which one"),
        (["one", "/save"], "/save needs a file the first time"),
        (["one", "/set max_new_tokens=1", "/regen", "/save a.jsonl"], "it was cut at max_new_tokens"),
        (["one " * 600], "/undo or /new shortens the conversation"),
        ([b"\xff\xfe"], "line 1: not UTF-8 at byte 1"),
    ],
)
def test_a_wrong_line_of_a_pipe_ends_the_chat_with_its_number(talk: Callable[..., Told], lines: list[str], reason: str):
    told = talk(*lines, expect=2)
    assert reason in told.err
    assert told.err.splitlines()[-1].startswith("error: line ")
    assert not list(Path().glob("a.*"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--weights", "best"), "'best'"),
        (("--weights", "adapter"), "there is no run in"),
        (("--against", "none.yaml"), "none.yaml"),
        (("--against-weights", "adapter", "--against", "task.yaml"), "there is no run in"),
        (("--set", "generation.max_new_tokens=0"), "generation.max_new_tokens"),
        (("--set", "datasets.a.path=x"), "this command reads only"),
        (("--set", "model.name=/nowhere"), "/nowhere"),
        (("--checkpoint", "3"), "has no checkpoints"),
        (("--set", "generation.max_new_tokens=512", "--dry-run"), "leaves no room for a prompt"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_loaded(
    talk: Callable[..., Told], options: tuple[str, ...], reason: str
):
    told = talk(options=options, expect=2)
    assert reason in told.err
    assert told.out == ""


def test_a_dry_run_says_who_would_answer_and_asks_nothing(talk: Callable[..., Told], sharp_model: Path):
    told = talk("one", options=("--dry-run",))
    assert told.out == ""
    assert told.err.splitlines()[0] == f"task base: {sharp_model}"
    assert told.err.splitlines()[-1] == "nothing was loaded (--dry-run)"
