"""The commands of a chat, which begin with a slash."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.text import as_shown
from posttrain.chat.dialogue import Dialogue, Turn
from posttrain.chat.job import ChatSettings
from posttrain.chat.rows import append_row, conversation_row, preference_row
from posttrain.config.keys import shortened
from posttrain.errors import ConfigError, DataError


@dataclass
class State:
    """What commands read and change.

    Attributes:
        ask: answers the last turn of the dialogue once more, by all models.
        edit: has a person change a text.
        output_dirs: where runs may be training.
        saved: the file of the last `/save`, and of the last `/prefer`.
    """

    dialogue: Dialogue
    settings: ChatSettings
    ask: Callable[[], None]
    edit: Callable[[str], str]
    output_dirs: Iterable[Path]
    saved: dict[str, Path]


def run_command(state: State, line: str) -> None:
    """Run a line that begins with a slash.

    Raises:
        ConfigError, DataError: there is no such command, or it cannot be done now; nothing has changed.
    """
    name, _, rest = line[1:].partition(" ")
    if name not in COMMANDS:
        near = get_close_matches(name, [*COMMANDS, "quit"], n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists the commands"
        raise ConfigError(f"there is no command /{shortened(name)}; {hint} (// begins a message with a slash)")
    COMMANDS[name].run(state, rest.strip())


def _regen(state: State, rest: str) -> None:
    _require_nothing(rest, "/regen")
    turn = state.dialogue.last
    if state.settings.temperature == 0:
        raise ConfigError("at temperature 0 the answer would be the same; /set temperature=0.7 first")
    earlier = turn.current
    turn.current = len(turn.answers)
    try:
        state.ask()
    finally:
        if turn.current >= len(turn.answers):
            turn.current = earlier


def _undo(state: State, rest: str) -> None:
    _require_nothing(rest, "/undo")
    asked = state.dialogue.last.question
    state.dialogue.turns.pop()
    console.print(f"took back: {shortened(asked)}")


def _edit(state: State, rest: str) -> None:
    before = state.dialogue.last
    question = rest or state.edit(before.question)
    if not question.strip():
        raise DataError("the question is empty; nothing was changed")
    state.dialogue.turns[-1] = Turn(question)
    try:
        state.ask()
    except BaseException:
        if state.dialogue.turns and not state.dialogue.turns[-1].answers:
            state.dialogue.turns[-1] = before
        raise


def _new(state: State, rest: str) -> None:
    _require_nothing(rest, "/new")
    state.dialogue.turns.clear()
    console.print("a new conversation begins")


def _system(state: State, rest: str) -> None:
    state.dialogue.system = rest or None
    console.print("the system message is set" if rest else "there is no system message now but the config's")


def _set(state: State, rest: str) -> None:
    if rest:
        state.settings = state.settings.with_text(rest)
    console.print(str(state.settings))


def _save(state: State, rest: str) -> None:
    file = _file(state, "save", rest)
    _append(state, "save", file, conversation_row(state.dialogue))


def _prefer(state: State, rest: str) -> None:
    turn = state.dialogue.last
    words = rest.split()
    numbers: list[int] = []
    while words and len(numbers) < 2 and words[0].isdecimal() and words[0].isascii():
        numbers.append(int(words.pop(0)[:9]) - 1)
        rest = rest.lstrip().partition(" ")[2]
    count = len(turn.answers)
    if count < 2:
        raise DataError("there is one answer; /regen gives another to compare it with")
    if not numbers:
        raise ConfigError("give the number of the better answer: /prefer 2")
    if wrong := [number for number in numbers if not 0 <= number < count]:
        raise ConfigError(f"there is no answer {wrong[0] + 1}, only 1 to {count}")
    if len(numbers) == 1 and count > 2:
        raise ConfigError(f"there are {count} answers; say over which one it is preferred: /prefer {numbers[0] + 1} 1")
    chosen, rejected = numbers if len(numbers) == 2 else (numbers[0], 1 - numbers[0])
    if chosen == rejected:
        raise ConfigError("an answer cannot be preferred over itself")
    file = _file(state, "prefer", rest.strip())
    _append(state, "prefer", file, preference_row(state.dialogue, chosen, rejected))
    turn.current = chosen


def _append(state: State, name: str, file: Path, row: dict) -> None:
    append_row(file, row, state.output_dirs)
    state.saved[name] = file
    console.print(f"appended to {as_shown(file)}")


def _file(state: State, name: str, typed: str) -> Path:
    """The file that was named now or the last time."""
    if not typed and name not in state.saved:
        raise ConfigError(f"/{name} needs a file the first time: {COMMANDS[name].usage}")
    return Path(typed).expanduser() if typed else state.saved[name]


def _help(state: State, rest: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        console.print(f"{command.usage:<{width}}  {command.help}")
    console.print(f"{'/quit':<{width}}  end (or Ctrl-D); Ctrl-C stops an answer")
    console.print("a line that ends with \\ goes on in the next one; // begins a message with a slash")


def _require_nothing(rest: str, command: str) -> None:
    if rest:
        raise ConfigError(f"{command} takes nothing after it")


@dataclass(frozen=True)
class Command:
    """How a command is written, what it does, and the function that does it."""

    usage: str
    help: str
    run: Callable[[State, str], None]


COMMANDS = {
    "regen": Command("/regen", "answer the last question once more, with another seed", _regen),
    "undo": Command("/undo", "take back the last question and its answers", _undo),
    "edit": Command("/edit [TEXT]", "change the last question and ask it again", _edit),
    "new": Command("/new", "begin a new conversation; the system message stays", _new),
    "system": Command("/system [TEXT]", "set the system message, or remove it", _system),
    "set": Command("/set [KEY=VALUE]", "change how answers are sampled, or show it", _set),
    "save": Command("/save [FILE]", "append the conversation to FILE, a row for toolkit-sft", _save),
    "prefer": Command(
        "/prefer N [M] [FILE]", "answer N is better than M: append a pair for toolkit-dpo, and go on with N", _prefer
    ),
    "help": Command("/help", "list the commands", _help),
}
