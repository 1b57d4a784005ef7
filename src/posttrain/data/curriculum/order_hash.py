"""Rolling hash of all rows drawn so far, logged with each optimizer step.

Equal hashes mean the same rows in the same order, whatever the ranks and micro-batches; and since a
curriculum can be recomputed, a run's data order can be checked long afterwards, without training.
"""

import json
import re
from collections.abc import Iterable
from hashlib import blake2b

from posttrain.data.curriculum.curriculum import Curriculum, Draw
from posttrain.errors import DataError

_START = "0" * 16


class OrderHash:
    """Rolling hash: h_k = blake2b(h_{k−1}, the draws of step k in slot order), 16 hex digits."""

    def __init__(self) -> None:
        self._value = _START

    @classmethod
    def from_state(cls, state: str) -> "OrderHash":
        """Continue from a value returned by `state()`, e.g. when a run resumes.

        Raises:
            DataError: `state` is not such a value, e.g. because the file that held it is damaged.
        """
        if not re.fullmatch(r"[0-9a-f]{16}", state):
            raise DataError(f"{state!r} is not the state of an order hash: 16 hex digits")
        order_hash = cls()
        order_hash._value = state
        return order_hash

    def state(self) -> str:
        """Return the hash of all steps so far: what the last `update` returned, zeros before the first."""
        return self._value

    def update(self, draws: Iterable[Draw]) -> str:
        """Add the draws of one optimizer step, in slot order over all ranks, and return the new hash."""
        hasher = blake2b(bytes.fromhex(self._value), digest_size=8)
        for draw in draws:
            # One line of JSON each, so that no data set or stage name can be mistaken for the end of its field.
            line = json.dumps([draw.dataset, draw.row, draw.epoch, draw.stage]) + "\n"
            hasher.update(line.encode())
        self._value = hasher.hexdigest()
        return self._value


def order_hash_after(curriculum: Curriculum, steps: int) -> str:
    """Recompute the hash of a run after its first `steps` optimizer steps."""
    if not 0 <= steps <= curriculum.total_steps:
        raise IndexError(f"the curriculum has {curriculum.total_steps} steps, not {steps}")
    order_hash = OrderHash()
    for step in range(steps):
        order_hash.update(curriculum.step(step))
    return order_hash.state()
