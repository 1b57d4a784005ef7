"""Rank of this process and number of processes, from the variables that torchrun and accelerate set."""

import os


def process_count() -> int:
    """Number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is rank 0, the only process that writes files and terminal output."""
    return process_rank() == 0


def process_rank() -> int:
    """Rank of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def on_one_machine() -> bool:
    """Whether all processes that train together run on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", process_count())) == process_count()


def share_of_rank(total: int) -> range:
    """This rank's part of `total` things; the parts of all ranks, in rank order, are all of them."""
    rank, ranks = process_rank(), process_count()
    return range(total * rank // ranks, total * (rank + 1) // ranks)
