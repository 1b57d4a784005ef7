"""A run that diverges says so and saves nothing."""

import pytest

from posttrain.config.load import load_config
from posttrain.errors import RunError
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import train


def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_saved(write_config, tmp_path):
    # Two steps at a learning rate of 1e30 make weights so large that their products overflow.
    training = {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e30, "schedule": "constant"}
    config = load_config(write_config(training=training), SFTConfig)
    with pytest.raises(RunError, match=r"is nan at step [23].*Lower training\.learning_rate"):
        train(config, "run")
    run = tmp_path / "runs" / "run"
    assert not (run / "result.json").exists()
    assert not (run / "adapter_model.safetensors").exists()
    assert not list(run.glob("checkpoint-*"))
