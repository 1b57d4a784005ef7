"""Trainer and engine divide torch's threads only where they compute on the same cores at the same time."""

from collections.abc import Iterator

import pytest
import torch

from posttrain.rl.rollout.config import RolloutConfig
from posttrain.rl.rollout.engines.threads import engine_threads, trainer_threads


@pytest.fixture(autouse=True)
def threads_again() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def divided(threads: int, /, **rollout: object) -> tuple[int | None, int]:
    """The engine's and the trainer's threads where torch has so many."""
    torch.set_num_threads(threads)
    config = RolloutConfig.model_validate(rollout)
    engine = engine_threads(config)
    with trainer_threads(config):
        trainer = torch.get_num_threads()
    assert torch.get_num_threads() == threads
    return engine, trainer


@pytest.mark.parametrize(("threads", "engine", "trainer"), [(1, 1, 1), (2, 1, 1), (5, 2, 3), (8, 4, 4)])
def test_an_engine_ahead_of_training_has_half_of_the_threads(threads: int, engine: int, trainer: int) -> None:
    on_cuda = torch.cuda.is_available()
    assert divided(threads, staleness=1) == ((None, threads) if on_cuda else (engine, trainer))


def test_threads_that_the_config_gives_leave_the_trainer_all_of_its_own() -> None:
    assert divided(4, staleness=1, threads=3) == (3, 4)


def test_engines_that_take_turns_with_the_trainer_have_all_threads() -> None:
    assert divided(4, placement="child") == (None, 4)


def test_servers_have_threads_of_their_own() -> None:
    servers = {"start": {"command": ["vllm", "serve"]}}
    assert divided(4, engine="vllm-server", staleness=1, servers=servers) == (None, 4)
