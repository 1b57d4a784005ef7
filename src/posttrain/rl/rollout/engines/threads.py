"""How torch's threads on a CPU are divided between training and an engine that works at the same time.

With threads for all cores each, every parallel operation of one waits for cores that the other one holds, and both take
several times as long (docs/async-rollouts.md).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from posttrain.models.backend import training_device
from posttrain.rl.rollout.config import RolloutConfig


def engine_threads(rollout: RolloutConfig) -> int | None:
    """Threads for an engine in a child process; None for torch's default. To be asked before `trainer_threads`."""
    return max(1, torch.get_num_threads() // 2) if _is_divided(rollout) else rollout.threads


@contextmanager
def trainer_threads(rollout: RolloutConfig) -> Iterator[None]:
    """Leave the engine its threads within the block; all are the trainer's if `rollout.threads` says what it gets."""
    threads = torch.get_num_threads()
    if _is_divided(rollout):
        torch.set_num_threads(threads - threads // 2)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _is_divided(rollout: RolloutConfig) -> bool:
    is_shared = bool(rollout.staleness) and not rollout.traits.is_server and training_device().type == "cpu"
    return is_shared and rollout.threads is None
