"""`--dry-run` of toolkit-sft: it shows the plan, refuses what the run would refuse, and changes no file."""

from pathlib import Path

import pytest
from refusals import contents
from typer.testing import CliRunner

from posttrain.cli.sft import main

WIDE = {"COLUMNS": "160"}


def shown(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, ["run.yaml", *arguments], env=WIDE)
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    return result.stderr


def test_the_plan_tells_stages_rows_model_and_step(folder: Path):
    before = contents(folder)
    plan = shown("--dry-run", "--set", "training.warmup_steps=1")
    assert contents(folder) == before
    rows = [line.split() for line in plan.splitlines()]
    # 2 steps of 4 rows from sums, then 2 steps with one third from sums, 3 of 8 rows: 11 draws of its 8 rows in all.
    assert ["warm-up", "1–2", "sums", "8", "100.0%", "1.38"] in rows
    assert ["main", "3–4", "sums", "3", "37.5%", "1.38"] in rows
    assert ["words", "5", "62.5%", "0.62"] in rows
    assert f"run directory   {folder}/runs/run\n" in plan
    assert "(folder), LoRA r=16 on all-linear\n" in plan
    assert "4 rows: 2 at once × 1 process × 2 micro-batches\n" in plan
    assert "4, learning rate 0.001 cosine after 1 warm-up steps\n" in plan
    assert plan.endswith("\nnothing was trained (--dry-run)\n")


def test_the_plan_tells_which_files_a_config_extends(folder: Path):
    (folder / "base.yaml").write_text((folder / "run.yaml").read_text())
    (folder / "run.yaml").write_text("extends: base.yaml\nchat: {max_length: 64}\n")
    plan = shown("--dry-run", "--set", "training.seed=1")
    assert plan.startswith("config          run.yaml over base.yaml\n")
    assert f"run directory   {folder}/runs/run\n" in plan


def test_stages_in_epochs_are_told_in_steps_and_trained_that_long(folder: Path):
    epochs = (
        "--set",
        "stages.0={name: warm-up, epochs: 1, mix: {sums: 1}}",
        "--set",
        "stages.1={name: main, epochs: 0.5}",
    )
    plan = shown("--dry-run", *epochs)
    # 8 rows each: 8 of sums are 2 steps of 4, and half of 16 are 2 more.
    assert "stage 'warm-up': 1 epochs of 8 rows are steps 1 to 2\n" in plan
    assert "stage 'main': 0.5 epochs of 16 rows are steps 3 to 4\n" in plan
    assert "4, learning rate 0.001 cosine" in plan
    assert "stage 'main': 0.5 epochs of 16 rows are steps 3 to 4\n" in shown(*epochs)
    assert (folder / "runs" / "run" / "checkpoint-4").is_dir()


def test_the_plan_refuses_a_model_that_cannot_do_without_padding_as_the_run_does(folder: Path):
    settings = ("--set", "training.batching=padding_free", "--set", "model.attention=eager")
    before = contents(folder)
    refused = shown("--dry-run", *settings, exit_code=2)
    assert refused.endswith(
        "error: training.batching: padding_free would be wrong for this model (llama): its attention (eager) cannot be "
        "replaced; set it to by_length\n"
    )
    assert "Curriculum" not in refused
    assert contents(folder) == before
    assert shown(*settings, exit_code=2).endswith(refused)


def test_a_name_in_square_brackets_is_shown_as_it_is(folder: Path):
    assert "[/main]" in shown("--dry-run", "--set", 'stages.1.name="[/main]"')


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("lora=null", "all weights trained\n"),
        ("training.max_steps=3", "training.max_steps stops at step 3"),
    ],
)
def test_the_plan_tells_what_an_override_changes(override: str, line: str, folder: Path):
    assert line in shown("--dry-run", "--set", override)


def test_the_plan_of_a_run_that_is_there_tells_what_a_start_would_do(folder: Path):
    shown("--set", "training.max_steps=2", "--set", "lora.r=2")
    before = contents(folder)
    same = ("--dry-run", "--set", "lora.r=2")

    plan = shown(*same, exit_code=2)
    assert "Curriculum" in plan
    assert f"error: a run already exists in {folder}/runs/run; continue it with --resume, " in plan

    assert shown(*same, "--overwrite").endswith("nothing was trained (--dry-run)\n")
    assert f"{folder}/runs/run would continue from step 2\n" in shown(*same, "--resume")
    done = shown(*same, "--resume", "--set", "training.max_steps=2")
    assert f"{folder}/runs/run is finished: nothing is left to resume\n" in done

    refused = shown(*same, "--resume", "--set", "training.seed=7", exit_code=2)
    assert "this would not be the same run, so it is not resumed; what changed:\n  training.seed: 0 → 7\n" in refused
    assert contents(folder) == before
