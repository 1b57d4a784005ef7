"""A finished run with checkpoint format 1, from before the toolkit's own loop, can be read but not resumed."""

import zipfile
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from posttrain.cli.merge import main as merge
from posttrain.cli.predict import main as predict
from posttrain.cli.runs import main as runs
from posttrain.cli.sft import main as sft
from sft.small_sft import write_sft_run

WRITTEN = Path(__file__).with_name("sft_run_format_1.zip")
# The data and model paths recorded when the run was written.
FORMER_DATA, FORMER_MODEL = "/tmp/oldrun", "/tmp/pytest-of-root/pytest-246/models0/tiny"


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path) -> Path:
    """The run's config, beside its folder, with the recorded data and model paths updated."""
    config = write_sft_run(tmp_path, tiny_model)
    with zipfile.ZipFile(WRITTEN) as archive:
        archive.extractall(tmp_path / "runs")
    for name in ("config.yaml", "manifest.json", "result.json", "adapter_config.json"):
        file = tmp_path / "runs" / "sft" / name
        moved = file.read_text().replace(FORMER_DATA, str(tmp_path)).replace(FORMER_MODEL, str(tiny_model))
        file.write_text(moved)
    return config


def said(command: object, *arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(command, [str(each) for each in arguments], env={"COLUMNS": "200"})  # pyright: ignore
    assert result.exit_code == exit_code, result.output
    return result.output


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_is_listed_compared_and_verified(config: Path) -> None:
    run = config.parent / "runs" / "sft"
    assert "finished" in said(runs, "list", run.parent)
    assert "nothing differs" in said(runs, "diff", run, run)
    verified = said(runs, "verify", run)
    assert "order_hash: all 6 steps match config and data" in verified
    assert "checkpoint-6: all files are intact, and its state is from that step" in verified


def test_it_is_merged_and_asked(config: Path, tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts.write_text('{"prompt": "Say 3"}\n')
    said(merge, config, "--output", tmp_path / "merged")
    assert load_file(tmp_path / "merged" / "model.safetensors")
    said(predict, config, prompts, answers, "--weights=adapter", "--set=generation.max_new_tokens=4")
    assert len(answers.read_text().splitlines()) == 1


def test_it_is_not_gone_on_with_and_stays_as_it_is(config: Path) -> None:
    before = files(config.parent)
    longer = "--set=stages=[{name: one, until_step: 2, mix: {a: 1}}, {name: two, until_step: 9, mix: {a: 1, b: 2}}]"
    refused = said(sft, config, "--resume", longer, exit_code=2)
    assert "checkpoint-6 was written by another version of the toolkit (checkpoint format 1" in refused
    assert files(config.parent) == before
