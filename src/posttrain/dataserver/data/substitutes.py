"""Choose other rows for the prompts of an iteration, as a pure function of its plan, data, seed and iteration.

A trainer requests them if the completions of a prompt are of no use to it. The plan stays as it is, and so does the
number of prompts that each data set contributes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Literal

from cachetools import LRUCache

from posttrain.data.curriculum.permutation import permute, round_keys
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.dataset_rows import Indices
from posttrain.dataserver.data.sampling import Sampler, Sides, Slot

# About 15 MB.
_REMEMBERED_SLOTS = 2**17

Use = Literal["first", "later", "never"]
"""Whether a row is used in its turn, only after all those that are, or not at all."""


def use_all(dataset: str, row: int) -> Use:
    """Use every row in its turn."""
    return "first"


def choose_substitutes(
    plan: Sequence[Slot],
    sides: Mapping[str, Sides],
    seed: int,
    iteration: int,
    attempts: int,
    use: Callable[[str, int], Use] = use_all,
) -> list[list[int]]:
    """The number of the row that replaces each slot's row, of shape [attempts, slots], from the same data set.

    The training rows of a data set d are walked in the order of the permutation with the keys (seed, "substitute d",
    iteration). Rows that the plan asks are passed over, and the others dealt to the slots of d: in slot order for
    attempt 1, then for attempt 2, and so on. An attempt therefore does not depend on how many follow.

    No row is dealt twice, or is in the plan, while d has (1 + attempts) rows for each of its slots. If it has fewer,
    each of its rows is asked before the walk starts again, then over all rows. A slot never gets its own row, unless d
    has no other.

    Args:
        plan: all slots of the iteration, in slot order.
        use: by data set and row number. Rows never used are dealt only if fewer than two others are in d.
    """
    dealt = [[slot.index for slot in plan] for _ in range(attempts)]
    for dataset in dict.fromkeys(slot.dataset for slot in plan):
        rows = sides[dataset].train
        if len(rows) < 2:
            continue
        walk = _Walk(rows, round_keys(seed, f"substitute {dataset}", iteration))
        own = {place: slot.index for place, slot in enumerate(plan) if slot.dataset == dataset}
        stream = _stream(walk, {*own.values()}, partial(use, dataset))
        # Rows whose turn came for the slot that asks them already.
        held = list[int]()
        for attempt in dealt:
            for place, row in own.items():
                attempt[place] = _next_other(row, held, stream)
    return dealt


class _Walk:
    """The rows of a data set in a random order, computed as far as it is read."""

    def __init__(self, rows: Indices | range, keys: tuple[int, ...]) -> None:
        self._rows = rows
        self._keys = keys

    def __iter__(self) -> Iterator[int]:
        size = len(self._rows)
        return (int(self._rows[permute(position, size, self._keys)]) for position in range(size))


def _stream(walk: _Walk, asked: Collection[int], use: Callable[[int], Use]) -> Iterator[int]:
    """The rows in the order in which they are dealt, without end; at least two of them are different."""
    later: list[int] = []
    for row in walk:
        decision = "never" if row in asked else use(row)
        if decision == "first":
            yield row
        elif decision == "later":
            later.append(row)
    yield from later
    usable = [row for row in walk if use(row) != "never"]
    while True:
        yield from usable if len(usable) > 1 else walk


def _next_other(row: int, held: list[int], stream: Iterator[int]) -> int:
    """The first row, held back or in the stream, that is not `row`; those before it in the stream are held back."""
    for place, other in enumerate(held):
        if other != row:
            del held[place]
            return other
    while (other := next(stream)) == row:
        held.append(other)
    return other


class Substitutes:
    """The substitutes of iterations that depend on no grades; may be used by several threads."""

    def __init__(self, config: DataserverConfig, sampler: Sampler, sides: Mapping[str, Sides]) -> None:
        self._sampler = sampler
        self._sides = sides
        self._seed = config.seed
        self._slots = config.prompts_per_iteration
        self._attempts = config.substitutes
        remembered = max(1, _REMEMBERED_SLOTS // (self._slots * (1 + self._attempts)))
        self._known = LRUCache[int, tuple[list[Slot], list[list[int]]]](maxsize=remembered)
        self._lock = Lock()

    def slots(self, iteration: int, slots: Sequence[int], attempt: int) -> list[Slot]:
        """The rows of substitutes number `attempt`, counted from 1, for some slots, in their order.

        Raises:
            ConfigError: the slots do not exist, or nothing is drawn at that iteration.
        """
        self._sampler.require_training_slots(iteration, slots)
        with self._lock:
            if iteration not in self._known:
                plan = self._sampler.slots(iteration, 0, self._slots, "train")
                dealt = choose_substitutes(plan, self._sides, self._seed, iteration, self._attempts)
                self._known[iteration] = plan, dealt
            plan, dealt = self._known[iteration]
        return substituted(plan, dealt, slots, attempt)


def substituted(plan: Sequence[Slot], dealt: Sequence[Sequence[int]], slots: Sequence[int], attempt: int) -> list[Slot]:
    """The slots of a plan with their rows of `attempt` among the substitutes `dealt`."""
    return [Slot(slot, plan[slot].dataset, dealt[attempt - 1][slot]) for slot in slots]
