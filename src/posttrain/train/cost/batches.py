"""Passes of rows through a model, and what their cost grows with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    """Rows that go through the model together.

    Attributes:
        width: tokens of the longest row, to which the others are padded.
        trained: tokens for which the head is computed, over all rows.
        has_gradient: whether there is a backward pass.
        packed: tokens of each part of a sequence without padding; empty if rows are padded.
    """

    rows: int
    width: int
    trained: int
    has_gradient: bool = True
    packed: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of all rows, including padding."""
        return sum(self.packed) or self.rows * self.width

    @property
    def pairs(self) -> int:
        """Token pairs within a row, over all rows."""
        return sum(tokens * tokens for tokens in self.packed) or self.tokens * self.width

    @property
    def sizes(self) -> np.ndarray:
        """What kept bytes grow with: tokens, token pairs, and tokens for which the head is computed."""
        return np.array([self.tokens, self.pairs, self.trained])


MicroBatch = Sequence[Batch]
"""Passes whose gradient is computed together."""
Step = Sequence[MicroBatch]
