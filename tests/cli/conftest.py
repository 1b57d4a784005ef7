"""A small valid config and its data, which each test breaks in one way, and the command that refuses it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from refusals import contents, the_one_error
from typer.testing import CliRunner

from posttrain.cli.sft import main

RIGHT = """\
model: {name: tiny, backend: hf}
chat:
  max_length: 64
datasets:
  sums: {path: sums.jsonl}
  words: {path: words.jsonl}
stages:
  - name: warm-up
    until_step: 2
    mix: {sums: 1}
  - name: main
    until_step: 4
    mix: {sums: 1, words: 2}
training:
  rows_per_step: 4
  micro_batch_size: 2
  learning_rate: 1e-3
"""


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the config above in run.yaml, its two data sets of 8 rows each, and the tiny model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(RIGHT)
    (tmp_path / "tiny").symlink_to(tiny_model)
    for name in ("sums", "words"):
        rows = [{"prompt": f"{name} {number}", "completion": f"it is {number}"} for number in range(8)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def edit_config(folder: Path) -> Callable[[str, str], None]:
    """`edit_config(old, new)` replaces text that occurs once in the config; an empty `old` appends `new`."""

    def edit(old: str, new: str) -> None:
        assert not old or RIGHT.count(old) == 1, old
        (folder / "run.yaml").write_text(RIGHT.replace(old, new) if old else RIGHT + new)

    return edit


@pytest.fixture
def refusal(folder: Path) -> Callable[..., str]:
    """`refusal(*arguments)` runs toolkit-sft in this process and returns its one error message.

    It asserts that the exit code is 2, that there is no traceback, and that no file changed.
    """

    def run(*arguments: str) -> str:
        before = contents(folder)
        result = CliRunner().invoke(main, list(arguments))
        assert result.exit_code == 2, result.output
        assert contents(folder) == before
        return the_one_error(result.stderr, result.stdout)

    return run
