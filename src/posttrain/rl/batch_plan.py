"""Which completions of an optimizer step each rank trains, and which go through the model together.

A plan is a pure function of the completions' lengths, so all ranks make the same one. The completions of a prompt stay
together, so that the prompt is computed once for all of them; every rank gets as many completions, and as nearly as it
can be as many tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchPlan:
    """An optimizer step, cut up.

    Attributes:
        micro_batches: of each rank, the completions of each of its micro-batches, by their numbers in the step; all
            have as many. What has nothing to be trained comes last.
        passes: how many of each rank's micro-batches have to be computed, on the rank that has to compute the most; at
            least 1.
    """

    micro_batches: tuple[tuple[tuple[int, ...], ...], ...]
    passes: int


@dataclass(frozen=True)
class _Unit:
    """Completions of one prompt that go to one rank."""

    rows: tuple[int, ...]
    tokens: int
    is_trained: bool


def plan_batch(
    tokens: Sequence[int], trained: Sequence[bool], group: int, micro_batch_size: int, ranks: int
) -> BatchPlan:
    """The plan of a step.

    Args:
        tokens: of each completion with its prompt, those of one prompt next to each other.
        trained: whether there is anything to be learnt from it.
        group: completions of each prompt.
        micro_batch_size: completions that go through the model at once; it divides those of a rank.
    """
    per_rank = len(tokens) // ranks
    size = next(size for size in range(group, 0, -1) if group % size == 0 and per_rank % size == 0)
    units = [_unit(range(start, start + size), tokens, trained) for start in range(0, len(tokens), size)]
    shares: list[list[_Unit]] = [[] for _ in range(ranks)]
    for unit in sorted(units, key=_heaviest_first):
        free = [share for share in shares if len(share) * size < per_rank]
        min(free, key=lambda share: sum(each.tokens for each in share if each.is_trained)).append(unit)
    cut = [_micro_batches(share, micro_batch_size) for share in shares]
    computed = [[any(trained[row] for row in rows) for rows in of_rank] for of_rank in cut]
    ordered = tuple(tuple(_true_first(*pair)) for pair in zip(cut, computed, strict=True))
    return BatchPlan(ordered, max(1, *map(sum, computed)))


def _unit(rows: range, tokens: Sequence[int], trained: Sequence[bool]) -> _Unit:
    return _Unit(tuple(rows), sum(tokens[row] for row in rows), any(trained[row] for row in rows))


def _heaviest_first(unit: _Unit) -> tuple[bool, int, int]:
    """Longest first: what does not fit into memory fails at once, and the last ones even the shares out."""
    return not unit.is_trained, -unit.tokens, unit.rows[0]


def _micro_batches(share: Sequence[_Unit], size: int) -> list[tuple[int, ...]]:
    rows = [row for unit in share for row in unit.rows]
    return [tuple(rows[start : start + size]) for start in range(0, len(rows), size)]


def _true_first(items: Sequence[tuple[int, ...]], truths: Sequence[bool]) -> list[tuple[int, ...]]:
    """The items in their order, but for those that are false, which come last."""
    return [item for wanted in (True, False) for item, truth in zip(items, truths, strict=True) if truth is wanted]
