"""TensorBoard gets the metrics of a run only if the config asks for it, and shows each step once."""

import shutil
from pathlib import Path

import pytest

from posttrain.train.trackers import run_trackers
from running import metrics
from sft.small_sft import train_sft, write_sft_run


def losses(run: Path, name: str = "train/loss") -> dict[int, float]:
    """What TensorBoard shows, by step; a step that it would show twice fails the test."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars(name)]
    assert len(dict(shown)) == len(shown), shown
    return dict(shown)


def test_a_step_that_a_resume_does_again_is_shown_once(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_trackers, "CLOSE_SECONDS", 300.0)  # a crowded machine imports TensorBoard slowly
    config = write_sft_run(
        tmp_path, tiny_model, run={"save_every": 2, "keep_checkpoints": 9, "trackers": ["tensorboard"]}
    )
    run = train_sft(config, "run", "training.max_steps=5")
    for name in ("checkpoint-5", "checkpoint-4", "result.json"):  # as a kill after step 5 would leave it, but for these
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
    train_sft(config, "run", "training.max_steps=5", resume=True)

    assert len(list((run / "tensorboard").iterdir())) == 2
    logged = {row["step"]: row for row in metrics(run) if "loss" in row}
    held_out = {row["step"]: row["eval_loss"] for row in metrics(run) if "eval_loss" in row}
    assert losses(run) == pytest.approx({step: row["loss"] for step, row in logged.items()})
    assert losses(run, "eval/loss") == pytest.approx(held_out)
    assert (list(logged), list(held_out)) == ([1, 2, 3, 4, 5], [0, 3, 5])


def test_without_trackers_nothing_but_the_run_directory_is_written(tiny_model: Path, tmp_path: Path) -> None:
    run = train_sft(write_sft_run(tmp_path, tiny_model), "run", "training.max_steps=1")
    assert [path.name for path in run.parent.iterdir()] == ["run"]
    assert not (run / "tensorboard").exists() and not (run / "trackers.json").exists()
