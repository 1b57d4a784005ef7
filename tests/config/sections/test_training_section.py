"""Dividing a config's optimizer steps among processes."""

import pytest

from posttrain.config.sections.training import TrainingConfig, accumulation_steps
from posttrain.errors import ConfigError


def test_one_process_accumulates_the_whole_step(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert accumulation_steps(TrainingConfig(rows_per_step=16, micro_batch_size=4)) == 4


def test_more_processes_share_the_same_step(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert accumulation_steps(TrainingConfig(rows_per_step=24, micro_batch_size=4)) == 2


def test_a_step_that_does_not_divide_over_the_processes_says_what_would(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"rows_per_step 16 is not .* 4 × 3 processes; choose a multiple of 12"):
        accumulation_steps(TrainingConfig(rows_per_step=16, micro_batch_size=4))


def test_with_tokens_at_once_the_processes_alone_must_divide_a_step(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert accumulation_steps(TrainingConfig(rows_per_step=15, micro_batch_tokens=512)) == 1
    with pytest.raises(ConfigError, match=r"rows_per_step 16 is not a multiple of the 3 processes; choose one that is"):
        accumulation_steps(TrainingConfig(rows_per_step=16, micro_batch_tokens=512))
