"""Rank of this process and number of processes, from the environment that torchrun and accelerate set."""

import os


def process_count() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is the one process that writes files and talks to the terminal."""
    return process_rank() == 0


def process_rank() -> int:
    """Which of them this one is, from 0."""
    return int(os.environ.get("RANK", "0"))
