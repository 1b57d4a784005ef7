"""Where the chunks of completions are that are being graded: told by the workers in memory that they share."""

from collections import deque
from multiprocessing.context import ForkServerContext
from typing import Any, NamedTuple

# More chunks than are ever under way; one that is given up is not soon followed by another at its place.
PLACES = 4096

# A mark is the number of a process and, in its last bits, how many completions it has begun.
_BITS = 8

Marks = Any
"""Shared memory: an array of whole numbers."""


class Mark(NamedTuple):
    """What a worker told last."""

    process: int
    completion: int
    """Which one of the chunk it is at."""


def set_mark(marks: Marks, place: int, process: int, completion: int) -> None:
    """Tell, in a worker, which completion of the chunk at this place it begins."""
    marks[place] = process << _BITS | completion + 1


class Progress:
    """The places of the chunks that are under way."""

    def __init__(self, context: ForkServerContext) -> None:
        self.marks: Marks = context.RawArray("Q", PLACES)
        """For the workers."""
        self._free = deque(range(PLACES))

    @property
    def is_full(self) -> bool:
        """Whether there is no place left."""
        return not self._free

    def take(self) -> int:
        """A place for a chunk."""
        place = self._free.popleft()
        self.marks[place] = 0
        return place

    def give_back(self, place: int) -> None:
        """The chunk at this place is done or given up."""
        self._free.append(place)

    def at(self, place: int) -> Mark | None:
        """Where the chunk is; None where no worker has begun it."""
        value = self.marks[place]
        return Mark(value >> _BITS, value % 2**_BITS - 1) if value else None
