"""Which of the usable records of a source are taken: all of them, or as many as `n_samples` says."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from posttrain.data.curriculum.permutation import permute, round_keys
from posttrain.dpo.sources import Numbered, PreferenceStream

T = TypeVar("T")


def taken(
    stream: Callable[[], PreferenceStream], n_samples: int | None, seed: int
) -> tuple[PreferenceStream, Iterator[Numbered], int]:
    """A stream that counts every record, what is taken of them in the order of the data, and how many are not.

    Which records are drawn depends on how many can be used, so that `n_samples` goes through the source twice; the
    counts are there after the first time, and otherwise as the records come.

    Raises:
        DataError: as the stream, where it has to be gone through first.
    """
    counted = stream()
    if n_samples is None:
        return counted, iter(counted), 0
    usable = sum(1 for _ in counted)
    if n_samples >= usable:
        return counted, iter(stream()), 0
    return counted, _at(iter(stream()), drawn(usable, n_samples, seed)), usable - n_samples


def drawn(count: int, n_samples: int, seed: int) -> npt.NDArray[np.int64]:
    """The places of `n_samples` of `count` records, rising: the first ones of a permutation by the seed."""
    keys = round_keys(seed, "n_samples", 0)
    places = (permute(position, count, keys) for position in range(n_samples))
    return np.sort(np.fromiter(places, dtype=np.int64, count=n_samples))


def _at(records: Iterator[T], places: npt.NDArray[np.int64]) -> Iterator[T]:
    """The records at places that rise; what comes after the last of them is not read."""
    numbered = enumerate(records)
    for place in places:
        yield next(record for number, record in numbered if number == place)
