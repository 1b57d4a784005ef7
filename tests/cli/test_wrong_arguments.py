"""Command-line arguments that are invalid or contradict each other."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import contents, the_one_error
from typer.testing import CliRunner

from posttrain.cli.sft import main
from running import BIN

Refusal = Callable[..., str]

# What is wrong: the arguments after the config, and the message.
WRONG_ARGUMENTS = {
    "--set without a value": (
        ["--set", "training.seed"],
        "--set training.seed: write it as key=value, such as --set training.seed=1",
    ),
    "--set of an unknown key": (
        ["--set", "training.warmup=1"],
        "--set training.warmup=1: training.warmup: unknown key; did you mean warmup_steps?",
    ),
    "--set of a wrong value": (
        ["--set", "chat.truncation=cut"],
        "--set chat.truncation=cut: chat.truncation: should be 'error', 'drop', 'left' or 'right', found 'cut'",
    ),
    "--set inside a value": (
        ["--set", "model.name.x=1"],
        "--set model.name.x=1: model.name holds a single value, so nothing can be set inside it",
    ),
    "--set beyond a list": (
        ["--set", "stages.2.until_step=9"],
        "--set stages.2.until_step=9: there is no stages.2: the list has items 0 to 1",
    ),
    "--set of broken YAML": (
        ["--set", "chat.default_system='x"],
        "--set chat.default_system='x: the value is not valid YAML: while scanning a quoted scalar on line "
        "1, found unexpected end of stream; indent with spaces, or put the value in quotes",
    ),
    "--set that no longer fits": (
        ["--set", "training.rows_per_step=5"],
        "run.yaml:14: training: rows_per_step 5 is not a multiple of micro_batch_size 2; choose a micro_batch_size "
        "that divides it",
    ),
    "a file of variables that is not there": (
        ["--env-file", "none.env"],
        "--env-file: no such file: none.env",
    ),
    "a folder for a file of variables": (
        ["--env-file", "."],
        "--env-file: . is a folder; name a file in it",
    ),
    "a file of variables with a line without =": (
        ["--env-file", "sums.jsonl"],
        "--env-file: sums.jsonl: lines 1, 2, 3, 4, 5 and 3 more: should be NAME=value, with quotes around odd values",
    ),
    "a run's name with a slash": (
        ["--run-name", "a/b"],
        "--run-name: a run's name must be a single folder name without a slash, not 'a/b'",
    ),
    "a run's name of nothing": (
        ["--run-name", ""],
        "--run-name: a run's name must be a single folder name without a slash, not ''",
    ),
    "--resume and --overwrite": (
        ["--resume", "--overwrite"],
        "--resume and --overwrite contradict each other; give one of them",
    ),
}


@pytest.mark.parametrize("start", [["--dry-run"], []], ids=["dry run", "start"])
@pytest.mark.parametrize(("arguments", "message"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS.keys())
def test_a_wrong_argument_is_told_as_it_was_typed(
    arguments: list[str], message: str, start: list[str], refusal: Refusal
):
    assert refusal("run.yaml", *arguments, *start) == message


# The arguments and part of Typer's message.
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "Missing argument 'CONFIG'"),
        (["run.yaml", "more.yaml"], "unexpected extra argument"),
        (["run.yaml", "--dryrun"], "--dry-run"),
        (["run.yaml", "--set"], "'--set' requires an argument"),
    ],
)
def test_a_command_that_was_typed_wrongly_is_told_how_to_type_it(arguments: list[str], answer: str, folder: Path):
    before = contents(folder)
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert answer in result.stderr
    assert contents(folder) == before


@pytest.mark.parametrize("start", [["--dry-run"], []], ids=["dry run", "start"])
def test_the_installed_command_says_it_in_the_same_way(start: list[str], folder: Path):
    (folder / "run.yaml").write_text((folder / "run.yaml").read_text().replace("sums.jsonl", "sum.jsonl"))
    before = contents(folder)
    finished = subprocess.run(
        [BIN / "toolkit-sft", "run.yaml", *start], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert finished.returncode == 2
    assert the_one_error(finished.stderr, finished.stdout) == (
        f"datasets.sums.path: no such file: {folder}/sum.jsonl; did you mean sums.jsonl?"
    )
    assert contents(folder) == before


def test_only_debug_shows_where_an_error_was_raised_and_the_exit_code_stays(folder: Path):
    result = CliRunner().invoke(main, ["run.yaml", "--debug", "--set", "chat.max_length=0"])
    assert result.exit_code == 2
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert result.stderr.endswith(
        "\nerror: --set chat.max_length=0: chat.max_length: should be greater than or equal to 8, found 0\n"
    )
