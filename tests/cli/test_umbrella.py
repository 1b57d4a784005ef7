"""`toolkit COMMAND` is `toolkit-COMMAND`, and knows its commands without importing them."""

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest
from typer.testing import CliRunner

from posttrain.cli.sft import main as sft
from posttrain.cli.toolkit import main

_CALL = (
    "import sys; from posttrain.cli.toolkit import main\ntry: main(prog_name='toolkit')\nfinally: print(*sys.modules)"
)
DECLARED = {
    each.name.removeprefix("toolkit-")
    for each in distribution("posttrain-toolkit").entry_points.select(group="console_scripts")
    if each.name.startswith("toolkit-")
}


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call `toolkit` in a process of its own, which prints its modules at the end."""
    env = {**os.environ, **environment, "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-c", _CALL, *arguments], capture_output=True, text=True, check=False, env=env
    )


def test_the_help_lists_every_declared_command_and_imports_none() -> None:
    result = call("--help")
    assert result.returncode == 0, result.stderr
    listed = {line.split()[1] for line in result.stdout.split("Commands")[1].splitlines() if line[:2] == "│ "}
    assert {"sft", "dpo", "rl-train", "data"} <= DECLARED <= listed
    assert "supervised fine-tuning." in result.stdout
    imported = {name for name in result.stdout.split() if name.startswith("posttrain.")}
    assert "posttrain.cli.toolkit" in imported
    assert not {f"posttrain.cli.{name.replace('-', '_')}" for name in DECLARED} & imported
    assert "posttrain.sft.config" not in imported


@pytest.mark.parametrize("arguments", [["missing.yaml"], ["--nonsense"], ["--help"]])
def test_a_command_does_the_same_under_both_names(arguments: list[str], folder: Path) -> None:
    one, other = CliRunner().invoke(main, ["sft", *arguments]), CliRunner().invoke(sft, arguments)
    assert one.exit_code == other.exit_code
    ends = [result.output.partition("Fine-tune")[2] or result.output.splitlines()[-1] for result in (one, other)]
    assert ends[0] == ends[1]


def test_a_command_sees_the_arguments_that_it_would_see_under_its_own_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["toolkit", "sft", "run.yaml", "--dry-run"])
    result = CliRunner().invoke(main, ["sft", "run.yaml", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert sys.argv == ["toolkit-sft", "run.yaml", "--dry-run"]


def test_an_unknown_command_is_refused() -> None:
    assert CliRunner().invoke(main, ["nothing"]).exit_code == 2
    assert CliRunner().invoke(main, ["toolkit"]).exit_code == 2


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("toolkit ru", {"runs"}), ("toolkit sft --dr", {"--dry-run"}), ("toolkit data gen", {"generate"})],
)
def test_commands_and_their_options_are_completed(typed: str, completed: set[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    result = call(_TOOLKIT_COMPLETE="complete_bash", **words)
    assert completed == set(result.stdout.splitlines()[:-1]), result.stderr


def test_a_shell_completes_after_the_installation_that_the_readme_names(tmp_path: Path) -> None:
    program = tmp_path / "toolkit"  # as pip writes it
    program.write_text(f"#!{sys.executable}\nfrom posttrain.cli.toolkit import main\nmain()\n")
    program.chmod(0o755)
    script = """
toolkit --install-completion
. ~/.bash_completions/toolkit.sh
for typed in "toolkit rl-de" "toolkit sft --over"; do
    COMP_WORDS=($typed) COMP_CWORD=$(( $(wc -w <<< "$typed") - 1 ))
    _toolkit_completion toolkit
    echo "completed: ${COMPREPLY[*]}"
done
"""
    env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, env=env)
    told = [line for line in result.stdout.splitlines() if line.startswith("completed: ")]
    assert told == ["completed: rl-debug", "completed: --overwrite"], result.stderr
    assert "toolkit" in (tmp_path / ".bashrc").read_text()
