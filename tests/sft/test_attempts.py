"""Each attempt of a run leaves a log, which later ones keep."""

from pathlib import Path

import pytest

from posttrain.errors import ConfigError, ModelError, RunError
from posttrain.runs.directory import RunDirectory
from sft.small_sft import train_sft, write_sft_run

ONE_STEP = "training.max_steps=1"


def attempts(run: Path) -> dict[str, list[str]]:
    """The lines of each log, without the times."""
    return {
        path.name: [line.partition(" ")[2] for line in path.read_text().splitlines()]
        for path in sorted((run / "logs").iterdir())
    }


def test_a_resume_adds_a_log_and_replacing_the_run_starts_again(tiny_model: Path, tmp_path: Path) -> None:
    config = write_sft_run(tmp_path, tiny_model, run={"save_every": 1})
    run = train_sft(config, "run", ONE_STEP)
    (first,) = attempts(run).values()
    assert any(line.startswith("trained parameters") for line in first)
    assert any(line.startswith("step 1/1") for line in first)
    assert "exported" in first[-1]

    with pytest.raises(ConfigError):
        train_sft(config, "run", "training.seed=1", resume=True)
    train_sft(config, "run", ONE_STEP, resume=True)  # nothing is left to do
    assert attempts(run) == {"attempt-1.log": first}

    train_sft(config, "run", "training.max_steps=2", resume=True)
    both = attempts(run)
    assert both["attempt-1.log"] == first
    assert any("from step 1" in line for line in both["attempt-2.log"])
    assert any(line.startswith("step 2/2") for line in both["attempt-2.log"])

    with pytest.raises(ModelError):
        train_sft(config, "run", "model.name=/nowhere", overwrite=True)
    assert attempts(run) == both
    train_sft(config, "run", ONE_STEP, overwrite=True)
    assert list(attempts(run)) == ["attempt-1.log"]


def test_the_log_ends_with_why_the_run_failed_and_stays_when_it_starts_again(tiny_model: Path, tmp_path: Path) -> None:
    # At a learning rate of 1e30 the second or third step overflows, and no checkpoint has been written by then.
    training = {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e30, "schedule": "constant"}
    run = tmp_path / "runs" / "run"
    for number in (1, 2):
        with pytest.raises(RunError):
            train_sft(write_sft_run(tmp_path, tiny_model, training=training), "run", resume=number == 2)
        told = attempts(run)
        assert list(told) == [f"attempt-{each}.log" for each in range(1, number + 1)]
        assert any(line.startswith("error: loss is nan") for line in told[f"attempt-{number}.log"])
    assert not RunDirectory(run).result.exists()
