"""Which rows of a micro-batch go through the model together, so that little padding is computed.

The answers of a pair are of different lengths, and a micro-batch has several pairs. Rows are scored one by one, so it
makes no difference which of them share a pass, except in how much of it is padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# How many tokens of padding cost as much time as one more pass does by itself (SmolLM2-135M, forward and backward).
_COST_OF_A_PASS = {"cpu": 32}
_COST_ELSEWHERE = 4096


@dataclass(frozen=True)
class Pass:
    """Rows that go through the model together, all padded to `width` tokens."""

    rows: tuple[int, ...]
    width: int


def cost_of_a_pass(device: str) -> int:
    """In tokens, on a kind of device as torch calls it."""
    return _COST_OF_A_PASS.get(device, _COST_ELSEWHERE)


def plan_passes(lengths: Sequence[int], cost: int | None) -> list[Pass]:
    """The passes that compute the fewest tokens, each counted as `cost` tokens more; the longest rows come first.

    Args:
        lengths: tokens of each row, shape [rows].
        cost: None for one pass in any case.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    if cost is None:
        return [Pass(tuple(range(len(lengths))), lengths[order[0]])]
    # best[i]: the fewest tokens in which the rows from place i of the order on can be computed; next_[i]: where the
    # pass that begins with place i ends. The first row of a pass is its longest.
    best, next_ = [0] * (len(order) + 1), [0] * len(order)
    for start in reversed(range(len(order))):
        best[start], next_[start] = min(
            (best[end] + (end - start) * lengths[order[start]] + cost, end) for end in range(start + 1, len(order) + 1)
        )
    passes, start = [], 0
    while start < len(order):
        passes.append(Pass(tuple(order[start : next_[start]]), lengths[order[start]]))
        start = next_[start]
    return passes
