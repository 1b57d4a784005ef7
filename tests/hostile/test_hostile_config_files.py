"""Config paths that are not regular files, and names with terminal escapes, given to the real commands."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from cli.refusals import the_one_error
from hostile.hostile_values import refusal_of, require_readable
from posttrain.config.load import load_config
from posttrain.sft.config import SFTConfig
from running import BIN

if TYPE_CHECKING:
    import typer

# The commands that read a config, with their other required arguments.
COMMANDS: dict[str, list[str]] = {
    "sft": [],
    "dpo": [],
    "rl_train": [],
    "rl_dataserver": [],
    "rl_grade": ["in.jsonl"],
    "rl_regrade": [],
    "rl_debug": [],
    "merge": [],
    "predict": ["in.jsonl", "out.jsonl"],
}


def refused(command: str, config: str) -> str:
    """The message with which the command refuses the config."""
    app: typer.Typer = import_module(f"posttrain.cli.{command}").main
    result = CliRunner().invoke(app, [config, *COMMANDS[command]])
    assert result.exit_code == 2, result.output
    message = the_one_error(result.stderr, result.stdout)
    require_readable(message)
    return message


def a_pipe(folder: Path) -> str:
    os.mkfifo(folder / "run.yaml")
    return "run.yaml"


def a_link_to_itself(folder: Path) -> str:
    (folder / "run.yaml").symlink_to("run.yaml")
    return "run.yaml"


def a_link_to_nothing(folder: Path) -> str:
    (folder / "run.yaml").symlink_to("gone.yaml")
    return "run.yaml"


def a_sparse_file(folder: Path) -> str:
    (folder / "run.yaml").touch()
    os.truncate(folder / "run.yaml", 2**40)
    return "run.yaml"


PIPE = "this is a pipe or a device, not a file; write the config to a file first"
# How each is created in the current folder, and part of the message.
NO_FILES: dict[str, tuple[Callable[[Path], str], str]] = {
    "a pipe that nobody writes to": (a_pipe, f"run.yaml: {PIPE}"),
    "a device without an end": (lambda _: "/dev/zero", f"/dev/zero: {PIPE}"),
    "a device that is empty": (lambda _: "/dev/null", f"/dev/null: {PIPE}"),
    "a folder": (lambda _: ".", ".: this is a folder; give the YAML file in it"),
    "a link to itself": (a_link_to_itself, "run.yaml: cannot be read: Too many levels of symbolic links"),
    "a link to nothing": (a_link_to_nothing, "run.yaml: there is no such file"),
    "a terabyte of nothing": (a_sparse_file, "run.yaml: larger than 1024 KiB; is this a config file?"),
    "a name too long for a file": (lambda _: "x" * 300, ": cannot be read: File name too long"),
    "a path too long for a file": (lambda _: "x/" * 2500, ": cannot be read: File name too long"),
    "a file's bytes in the place of a folder": (
        lambda _: "/etc/hostname/run.yaml",
        ": cannot be read: Not a directory",
    ),
    "a file of the system without lines": (lambda _: "/proc/self/mem", ": cannot be read: Input/output error"),
    "a name that steers the terminal": (lambda _: "\x1b[2Jrun\u202e.yaml\r", "\\x1b[2Jrun\\u202e.yaml\\r: there is no"),
    "bytes that are no UTF-8": (lambda _: os.fsdecode(b"run\xff.yaml"), "run\\udcff.yaml: there is no such file"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(("make", "message"), NO_FILES.values(), ids=NO_FILES.keys())
def test_what_is_no_config_file_is_refused_by_every_command_and_never_waited_for(
    command: str, make: Callable[[Path], str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert message in refused(command, make(tmp_path))


def test_a_path_with_a_nul_is_refused(tmp_path: Path):
    message = refusal_of(lambda: load_config(tmp_path / "run\0.yaml", SFTConfig))
    assert message == f"{tmp_path}/run\\x00.yaml: cannot be read: embedded null byte"


def start(config: str | Path, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run toolkit-sft in a subprocess."""
    return subprocess.run([BIN / "toolkit-sft", config, "--dry-run"], capture_output=True, timeout=60, **options)  # type: ignore[call-overload]


@pytest.fixture
def silent_pipe() -> Iterator[int]:
    """The read end of a pipe whose write end stays open and silent."""
    reading, writing = os.pipe()
    yield reading
    os.close(reading)
    os.close(writing)


def test_a_standard_input_that_says_nothing_is_not_waited_for(silent_pipe: int):
    ended = start("/dev/stdin", stdin=silent_pipe)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert ended.stderr.decode() == f"error: /dev/stdin: {PIPE}\n"


def test_a_file_may_come_by_standard_input(tmp_path: Path):
    (tmp_path / "run.yaml").write_text("modle: {name: x}\n")
    with (tmp_path / "run.yaml").open() as file:
        ended = start("/dev/stdin", stdin=file)
    assert ended.returncode == 2
    assert b"/dev/stdin:1: modle: unknown key; did you mean model?" in ended.stderr


def test_no_name_or_value_of_a_config_steers_the_terminal(tmp_path: Path):
    steering = "\x1b]0;title\x07\u202e\u0085"
    folder = tmp_path / "a\x1b[31mb"
    folder.mkdir()
    config = folder / "run\x1b[0m\r.yaml"
    config.write_text(
        f'"{steering!a}": 1\nmodel: {{name: "{ascii(steering)[1:-1]}", revision: 7}}\n'.replace("'", ""),
        encoding="utf-8",
    )
    ended = start(config)
    assert ended.returncode == 2
    message = ended.stderr.decode()
    require_readable(message)
    assert "a\\x1b[31mb/run\\x1b[0m\\r.yaml has " in message


def test_a_device_that_is_a_terminal_is_no_config():
    main_end, terminal = os.openpty()
    try:
        done = threading.Event()
        answers: list[str] = []

        def ask() -> None:
            answers.append(refused("sft", os.ttyname(terminal)))
            done.set()

        threading.Thread(target=ask, daemon=True).start()
        assert done.wait(30), "a terminal was waited for"
        assert PIPE in answers[0]
    finally:
        os.close(terminal)
        os.close(main_end)
