"""Group the rows of a micro-batch into forward passes with little padding.

The answers of a pair differ in length, and a micro-batch has several pairs. Each row is scored on its own, so which
rows share a pass only affects the padding. Rows that go through the model without padding need only one pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# How many padding tokens take as long as the overhead of one more pass (SmolLM2-135M, forward and backward).
_COST_OF_A_PASS = {"cpu": 32}
_COST_ELSEWHERE = 4096


@dataclass(frozen=True)
class Pass:
    """Rows that go through the model together, all padded to `width` tokens.

    Attributes:
        rows: their numbers, the longest row first.
    """

    rows: tuple[int, ...]
    width: int


def cost_of_a_pass(device: str) -> int:
    """The overhead of one pass, in tokens, on a torch device type."""
    return _COST_OF_A_PASS.get(device, _COST_ELSEWHERE)


def plan_passes(lengths: Sequence[int], cost: int | None) -> list[Pass]:
    """The passes that compute the fewest tokens, with `cost` tokens added for each pass; the longest rows come first.

    Args:
        lengths: tokens of each row, shape [rows].
        cost: None to make a single pass in any case.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    if cost is None:
        return [Pass(tuple(range(len(lengths))), lengths[order[0]])]
    # best[i]: the fewest tokens that compute order[i:]; next_[i]: where the pass that begins at i ends. The first row
    # of a pass is its longest.
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
