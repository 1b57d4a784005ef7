"""The command lists what it found, changes nothing unasked, and mends what it is asked to mend."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from base_install import base_python
from posttrain.cli.doctor import main
from posttrain.doctor import doctor
from posttrain.doctor.findings import Asked, Finding
from test_dataserver_docs import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text(encoding="utf-8")
LIGHT = ("python", "folders", "locks", "ports", "tokens", "model", "disk", "vllm")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def test_the_findings_are_listed_in_order(folder: Path) -> None:
    result = CliRunner().invoke(main, only("locks", "python", "memory"))
    assert result.exit_code == 0, result.output
    assert [line.split()[:2] for line in result.output.splitlines()[:3]] == [
        ["fine", "python"],
        ["fine", "locks"],
        ["unchecked", "memory"],
    ]
    assert result.output.splitlines()[-1] == "nothing is broken or slow"


def test_what_is_broken_gives_exit_code_1_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop\n")
    result = CliRunner().invoke(main, only("python", "tokens"))
    assert result.exit_code == 1
    assert "→ in your shell: export HF_TOKEN=" in result.output
    assert "hf_abcdefghijklmnop" not in result.output
    assert result.output.splitlines()[-1] == "error: broken: tokens"


def test_json_holds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    result = CliRunner().invoke(main, [*only("python", "tokens"), "--json"])
    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert [(row["check"], row["state"], row["in_shell"]) for row in rows] == [
        ("python", "fine", False),
        ("tokens", "broken", True),
    ]
    assert set(rows[0]) == {"check", "state", "told", "mend", "advice", "in_shell"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--only", "thread"], "threads"),
        (["--mend", "nothing"], "the checks are"),
        (["missing.yaml"], "missing.yaml"),
        (["--set", "training.seed=1"], "config"),
        (["wrong.yaml"], "wrong.yaml:1"),
    ],
)
def test_wrong_input_is_refused(arguments: list[str], problem: str) -> None:
    Path("wrong.yaml").write_text("modle: {}\n")
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2, result.output
    assert problem in result.output


def test_nothing_is_changed_unasked_and_nothing_heavy_is_imported(folder: Path) -> None:
    code = (
        "import sys; sys.argv = ['toolkit-doctor', *sys.argv[1:]]\nfrom posttrain.cli.doctor import main\n"
        "try: main()\nfinally: print(*{'torch', 'transformers', 'numpy', 'httpx'} & sys.modules.keys())"
    )
    home = folder / "home"
    home.mkdir()
    names = [name for name in os.environ if name.startswith(("HF_", "XDG_", "POSTTRAIN_", "TRANSFORMERS_"))]
    env = {name: value for name, value in os.environ.items() if name not in names} | {"HOME": str(home)}
    command = [sys.executable, "-c", code, *only(*LIGHT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
    assert [*folder.rglob("*")] == [home]


def test_the_base_install_is_told_what_it_lacks(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (folder / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (folder / "sft.yaml").write_text(
        "model: {name: smollm2-135m-instruct}\ndatasets: {rows: {path: rows.jsonl}}\n"
        "stages: [{name: one, until_step: 2, mix: {rows: 1}}]\n"
    )
    code = "import sys; from posttrain.cli.doctor import main; main()"
    command = [base_python(tmp_path_factory.mktemp("base")), "-I", "-c", code]
    alone = subprocess.run(command, capture_output=True, text=True, check=False)
    assert alone.returncode == 0, alone.stderr
    assert "unchecked torch" in alone.stderr
    trainer = subprocess.run([*command, "sft.yaml"], capture_output=True, text=True, check=False)
    assert trainer.returncode == 1
    assert trainer.stderr.splitlines()[-1] == "error: broken: packages, model"


def _about(file: Path, command: str) -> doctor.Check:
    def check(asked: Asked) -> Finding:
        return Finding("fine", "there") if file.exists() else Finding("broken", "not there", command)

    return check


def test_only_what_is_named_is_mended_and_it_is_checked_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "a file"
    monkeypatch.setitem(doctor.CHECKS, "python", _about(file, f"touch '{file}'"))
    assert CliRunner().invoke(main, only("python")).exit_code == 1
    assert not file.exists()
    result = CliRunner().invoke(main, ["--mend", "python"])
    assert result.exit_code == 0, result.output
    assert file.exists()
    assert [line.split()[0] for line in result.output.splitlines()[:2]] == ["broken", "→"]
    assert "running: touch" in result.output
    assert CliRunner().invoke(main, ["--mend", "python"]).exit_code == 0  # nothing is left to mend


@pytest.mark.parametrize(("command", "code"), [("false", 1), ("true", 1), ("", 2)])
def test_a_command_that_does_not_mend_is_told(
    command: str, code: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(doctor.CHECKS, "python", _about(folder / "never", command))
    assert CliRunner().invoke(main, ["--mend", "python"]).exit_code == code


def test_a_variable_of_the_users_shell_cannot_be_mended_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    result = CliRunner().invoke(main, ["--mend", "tokens"])
    assert result.exit_code == 2
    assert "in your shell" in result.output


def test_the_page_names_all_checks_and_its_commands_run(folder: Path, tiny_model: Path) -> None:
    assert re.findall(r"^\| `([a-z0-9]+)` \|", PAGE, re.MULTILINE) == list(doctor.CHECKS)
    (folder / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    (folder / "sft.yaml").write_text(
        f"model: {{name: {tiny_model}}}\ndatasets: {{rows: {{path: rows.jsonl}}}}\n"
        "stages: [{name: one, until_step: 2, mix: {rows: 1}}]\n"
    )
    commands = [line.split("#")[0].split() for block in blocks(PAGE, "") for line in block.splitlines()]
    assert len(commands) == 5
    for _, *arguments in commands:
        if "--mend" in arguments or not {"--only", "--json"} & set(arguments):
            arguments = ["--only", "python", *(each for each in arguments if each.endswith(".yaml"))]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
