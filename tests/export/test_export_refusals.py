"""What cannot be exported is refused before anything is made: one message, exit code 2, nothing written."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from cli.refusals import contents, the_one_error
from posttrain.cli.export import main
from posttrain.export.llama_cpp import CONVERTER


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path) -> Path:
    """A run that trained all weights, so that its folder is the model; and llama.cpp's programs, never started."""
    run = tmp_path / "runs" / "task"
    run.mkdir(parents=True)
    for file in tiny_model.iterdir():
        (run / file.name).write_bytes(file.read_bytes())
    (run / "config.yaml").write_text(yaml.safe_dump({"model": {"name": str(tiny_model)}, "lora": None}))
    (run / "manifest.json").write_text("{}")
    (tmp_path / "task.yaml").write_text(
        yaml.safe_dump({"model": {"name": str(tiny_model)}, "run": {"output_dir": "runs"}})
    )
    programs = tmp_path / "llama.cpp"
    programs.mkdir()
    (programs / CONVERTER).touch()
    (programs / "llama-server").touch(mode=0o755)
    (tmp_path / "empty").mkdir()
    (tmp_path / "there.gguf").write_bytes(b"a file of the user")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "hello"}\n')
    (tmp_path / "bad.jsonl").write_text('{"question": "hello"}\n')
    (tmp_path / "none.jsonl").write_text("")
    return tmp_path


# The options after `task.yaml --llama-cpp llama.cpp`, and words of the message.
WRONG = {
    "an output of another kind": (["--output", "model.bin"], "model.bin does not end in .gguf"),
    "an output that is there": (["--output", "there.gguf"], "there.gguf already exists"),
    "an output in a file": (["--output", "there.gguf/a.gguf"], "there.gguf is a file, not a folder"),
    "a folder that is not llama.cpp": (["--llama-cpp", "empty"], "empty holds none of"),
    "a type that needs another program": (
        ["--type", "q4_k_m"],
        "--type q4_k_m needs llama.cpp's program",
    ),
    "an unknown type": (["--type", "q3"], "'q3' is not one of"),
    "no place for a model that no run has": (["--weights", "base"], "give --output"),
    "a checkpoint of a model before training": (
        ["--weights", "base", "--checkpoint", "3", "--output", "new.gguf"],
        "no checkpoints",
    ),
    "an unknown target": (["--to", "onnx"], "'onnx' is not"),
    "a run that is not there": (["--run-name", "other"], "there is no run in"),
    "a checkpoint that is not there": (["--checkpoint", "7"], "there is no complete checkpoint in"),
    "prompts that are not there": (["--prompts", "missing.jsonl"], "no such file: missing.jsonl"),
    "prompts that are none": (["--prompts", "bad.jsonl"], "bad.jsonl:1"),
    "no prompts": (["--prompts", "none.jsonl"], "none.jsonl"),
    "an unknown section": (["--set", "training.max_steps=1"], "training"),
}


@pytest.mark.parametrize("case", WRONG)
def test_it_is_refused_and_nothing_is_written(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    options, words = WRONG[case]
    before = contents(folder)
    result = CliRunner().invoke(main, ["task.yaml", "--llama-cpp", "llama.cpp", *options])
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.stderr.replace("│", " ").split())
    assert contents(folder) == before


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    before = contents(folder)
    command = ["task.yaml", "--llama-cpp", "llama.cpp", "--prompts", "prompts.jsonl", "--type", "f16", "--dry-run"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert contents(folder) == before


def test_the_model_before_training_can_be_written_too(folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    command = ["task.yaml", "--llama-cpp", "llama.cpp", "--weights", "base", "--output", "new.gguf", "--dry-run"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert str(tiny_model) in result.stderr.replace("\n", "")


def test_a_converter_that_fails_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """A real program that ends with an error, after it has written half a file."""
    monkeypatch.chdir(folder)
    half = "open(sys.argv[sys.argv.index('--outfile') + 1], 'w').write('half')"
    script = f"import sys\n{half}\nsys.exit('unknown model')\n"
    (folder / "llama.cpp" / CONVERTER).write_text(script)
    before = contents(folder / "runs").keys()
    result = CliRunner().invoke(main, ["task.yaml", "--llama-cpp", "llama.cpp"])
    assert result.exit_code == 1
    assert "converter ended with exit code 1" in (told := the_one_error(result.stderr, result.stdout))
    assert "unknown model" in told
    assert contents(folder / "runs").keys() == before
