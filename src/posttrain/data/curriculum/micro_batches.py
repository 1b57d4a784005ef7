"""How the rows of an optimizer step are cut into micro-batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posttrain.config.sections.training import TrainingConfig


@dataclass(frozen=True)
class MicroBatchSize:
    """What goes through the model at once.

    Attributes:
        rows: number of rows, unless `tokens` is given.
        tokens: most tokens, with padding; a longer row goes alone.
        padding_free: whether there is no padding.
    """

    rows: int
    tokens: int | None = None
    padding_free: bool = False

    @classmethod
    def of(cls, training: "TrainingConfig", *, padding_free: bool) -> "MicroBatchSize":
        """The size that a config asks for."""
        return cls(training.micro_batch_size, training.micro_batch_tokens, padding_free)

    def computed(self, lengths: Sequence[int]) -> int:
        """Tokens that are computed for rows of these lengths."""
        return self.computed_of(len(lengths), sum(lengths), max(lengths))

    def computed_of(self, rows: int, total: int, longest: int) -> int:
        """Tokens that are computed for so many rows of `total` tokens, up to `longest` each."""
        return total if self.padding_free else rows * longest


def cut(
    order: Sequence[int], lengths: Sequence[int], size: MicroBatchSize, *, multiple: int = 1, at_least: int = 1
) -> list[tuple[int, ...]]:
    """Cut rows into micro-batches of neighbours in `order`.

    Args:
        order: numbers of the rows.
        lengths: tokens of each row, by its number.
        multiple: what the number of micro-batches has to be a multiple of; divides the number of rows.
        at_least: how many there have to be; at most as many as rows.
    """
    if size.tokens is None:
        return [tuple(order[start : start + size.rows]) for start in range(0, len(order), size.rows)]
    ordered = [lengths[row] for row in order]
    starts = list(_starts(ordered, size, size.tokens))
    # The largest that can be halved comes first; of equal ones, the first.
    halvable: list[tuple[int, int, int]] = []

    def add(start: int, end: int) -> None:
        if end - start > 1:
            heappush(halvable, (-size.computed(ordered[start:end]), start, end))

    for start, end in pairwise([*starts, len(order)]):
        add(start, end)
    while len(starts) % multiple or len(starts) < at_least:
        _, start, end = heappop(halvable)
        middle = (start + end + 1) // 2
        starts.append(middle)
        add(start, middle)
        add(middle, end)
    return [tuple(order[start:end]) for start, end in pairwise([*sorted(starts), len(order)])]


def _starts(lengths: Sequence[int], size: MicroBatchSize, tokens: int) -> Iterator[int]:
    """Where micro-batches begin that each take as many of the next rows as fit into `tokens`, and at least one."""
    rows = total = longest = 0
    for place, length in enumerate(lengths):
        rows, total, longest = rows + 1, total + length, max(longest, length)
        if place == 0 or size.computed_of(rows, total, longest) > tokens:
            rows, total, longest = 1, length, length
            yield place
