"""Options have the same name, help and meaning in all commands, and shells complete them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.testing import CliRunner

from posttrain.cli import doorway
from posttrain.cli.sft import main

SCRIPTS = {
    each.name: each
    for each in distribution("posttrain-toolkit").entry_points.select(group="console_scripts")
    if each.name.startswith("toolkit-")
}


def commands() -> Iterator[tuple[str, TyperCommand]]:
    waiting: list[tuple[str, Any]] = [(name, typer.main.get_command(each.load())) for name, each in SCRIPTS.items()]
    while waiting:
        name, command = waiting.pop()
        if isinstance(command, TyperGroup):
            waiting += [(f"{name} {each}", inner) for each, inner in command.commands.items()]
        else:
            yield name, command


COMMANDS = dict(commands())
SHARED = ("--set", "--run-name", "--output-dir", "--model-index", "--resume", "--overwrite", "--dry-run", "--schema")
EVERYWHERE = ("--debug", "--version")


def options(name: str) -> dict[str, TyperOption]:
    return {opt: each for each in COMMANDS[name].params for opt in each.opts if opt.startswith("--")}  # type: ignore


@pytest.mark.parametrize("option", [*SHARED, "--env-file", *EVERYWHERE])
def test_an_option_that_several_commands_have_is_the_same_in_each(option: str) -> None:
    having = [each[option] for name in COMMANDS if option in (each := options(name))]
    assert len(having) >= 3
    assert len({(each.help, each.metavar, each.is_flag) for each in having}) == 1


def test_every_command_has_the_options_that_fit_it() -> None:
    assert len(COMMANDS) >= 28
    for name in COMMANDS:
        own = set(options(name))
        assert own >= set(EVERYWHERE), name
        takes_a_config = any(each.name == "config" for each in COMMANDS[name].params)
        assert takes_a_config == ("--env-file" in own) == ("--set" in own), name
        assert ("--run-name" in own) == ("--output-dir" in own), name
        assert "--dry-run" in own or not {"--overwrite", "--output-dir"} & own or name in WITHOUT_A_PLAN, name


# They only show something, or take so little time that they are their own plan.
WITHOUT_A_PLAN = {
    "toolkit-data dedup",
    "toolkit-data decontaminate",
    "toolkit-data generate crossword",
    "toolkit-data generate crossword_grid",
    "toolkit-data generate rush_hour",
    "toolkit-init",
    "toolkit-preview",
    "toolkit-rl-debug",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_no_python_types(name: str) -> None:
    script, *inner = name.split()
    shown = CliRunner().invoke(SCRIPTS[script].load(), [*inner, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0
    types = set(re.findall(r"<[\w\[\], ]+>|INTEGER|FLOAT|BOOLEAN|RANGE", shown.output)) - {"<run>", "<gguf>"}
    assert types == set()
    assert "--install-completion" not in shown.output


def test_the_folder_of_the_runs_may_have_any_name() -> None:
    assert doorway.overrides(None, run__output_dir=None) == []
    assert doorway.overrides(["a=1"], run__output_dir=Path('5: "ü"')) == ["a=1", 'run.output_dir="5: \\"ü\\""']


def test_a_wrong_env_file_is_told_before_anything_is_read(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["none.yaml", "--env-file", str(tmp_path / "none.env")])
    assert result.exit_code == 2
    assert result.output == f"error: --env-file: no such file: {tmp_path}/none.env\n"


@pytest.mark.parametrize(
    ("script", "typed", "completed"),
    [
        ("toolkit-sft", "run.yaml --dr", {"--dry-run"}),
        ("toolkit-merge", "run.yaml --out", {"--output", "--output-dir"}),
        ("toolkit-runs", "rep", {"report"}),
        ("toolkit-predict", "--weights me", {"merged"}),
    ],
)
def test_each_command_answers_a_shell_that_completes(script: str, typed: str, completed: set[str]) -> None:
    words = f"{script} {typed}"
    asked = {f"_{script.replace('-', '_').upper()}_COMPLETE": "complete_bash"}
    env = {**os.environ, **asked, "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    module, function = SCRIPTS[script].value.split(":")
    call = f"from {module} import {function}; {function}(prog_name={script!r})"
    result = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True, env=env, check=False)
    assert set(result.stdout.split()) == completed, result.stderr
