"""Random numbers of their own for code that draws torch's."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class RandomNumbers:
    """Torch's random numbers on the CPU from a seed: drawn inside of `drawn`, and unknown to all others."""

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Go on from where the last block ended; afterwards the others' go on as if nothing had been drawn."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._state)
            yield
            self._state = torch.get_rng_state()
