"""How the rows of an optimizer step are cut into micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass
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
        return sum(lengths) if self.padding_free else len(lengths) * max(lengths)


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
    found: list[list[int]] = []
    for row in order:
        if found and size.computed([lengths[each] for each in (*found[-1], row)]) <= size.tokens:
            found[-1].append(row)
        else:
            found.append([row])
    while len(found) % multiple or len(found) < at_least:
        # The largest that can be halved.
        place = max(
            (place for place, rows in enumerate(found) if len(rows) > 1),
            key=lambda place: size.computed([lengths[row] for row in found[place]]),
        )
        half = (len(found[place]) + 1) // 2
        found[place : place + 1] = [found[place][:half], found[place][half:]]
    return [tuple(rows) for rows in found]
