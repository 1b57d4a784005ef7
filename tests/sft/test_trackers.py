"""Trackers get the metrics only if the config asks for it."""

from posttrain.config.load import load_config
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import train


def test_tensorboard_gets_the_losses_of_the_run_and_keeps_them_in_its_folder(write_config, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = write_config(run={"trackers": ["tensorboard"]})
    result = train(load_config(config, SFTConfig, ["training.max_steps=2"]), "run")
    events = EventAccumulator(str(tmp_path / "runs" / "run" / "tensorboard"))
    events.Reload()
    losses = [event.value for event in events.Scalars("train/loss")]
    assert len(losses) == 2
    assert abs(losses[-1] - result["loss"]) < 1e-6


def test_without_trackers_nothing_but_the_run_directory_is_written(write_config, tmp_path):
    train(load_config(write_config(), SFTConfig, ["training.max_steps=1"]), "run")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["run"]
    assert not (tmp_path / "runs" / "run" / "tensorboard").exists()
