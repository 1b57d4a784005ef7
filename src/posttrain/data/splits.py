"""Hold out validation rows, chosen by a hash of their content.

The split depends on the seed and on the contents of the data set, not on the order of its lines, and rows with the same
content are always on the same side: a model is never validated on what it was trained on.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from posttrain.base.cache import cache_dir
from posttrain.base.files import atomic_folder
from posttrain.conversation.messages import Conversation
from posttrain.data.records import Record
from posttrain.data.token_arrays import mapped_array
from posttrain.errors import ConfigError, DataError

Rows = npt.NDArray[np.int64]
Contents = npt.NDArray[np.uint64]

# Raise it when the same contents are split differently, so that older cached splits are not read.
_FORMAT_VERSION = 1
# Splitting fewer rows is faster than saving the split.
_ROWS_WORTH_KEEPING = 1 << 17
# Rows processed at a time.
_STRETCH = 1 << 16


def content_hash(conversation: Conversation) -> int:
    """64-bit hash of what is said, by whom and with which tools, but not of which turns may be trained."""
    turns = [
        [turn.role, turn.content, turn.reasoning, [[c.name, c.arguments] for c in turn.tool_calls], turn.name]
        for turn in conversation.messages
    ]
    return text_hash(json.dumps([turns, conversation.tools], sort_keys=True))


def text_hash(text: str) -> int:
    """64-bit hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class Splittable(Protocol):
    """A data set whose rows can be divided."""

    @property
    def contents(self) -> Contents:
        """One content hash per row, shape [rows]."""
        ...

    def subset(self, rows: Rows, name: str) -> Self:
        """The given rows as a data set of their own."""
        ...


D = TypeVar("D", bound=Splittable)


def split_each(whole: Mapping[str, D], fraction: float, seed: int) -> tuple[dict[str, D], list[D]]:
    """The training part of each data set, by name, and the held-out part of each."""
    training: dict[str, D] = {}
    held_out: list[D] = []
    for name, dataset in whole.items():
        train_rows, validation_rows = _kept_split(dataset.contents, fraction, seed, name)
        training[name] = dataset.subset(train_rows, name)
        held_out.append(dataset.subset(validation_rows, name))
    return training, held_out


def _kept_split(contents: Contents, fraction: float, seed: int, name: str) -> tuple[Rows, Rows]:
    """`held_out_rows`, cached if there are many rows, since ranking takes a second per million."""
    if len(contents) < _ROWS_WORTH_KEEPING:
        return held_out_rows(contents, fraction, seed, name)
    described = {"split": _FORMAT_VERSION, "fraction": fraction, "seed": seed}
    key = hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16)
    key.update(np.ascontiguousarray(contents).data)
    folder = cache_dir() / "splits" / key.hexdigest()
    if (kept := _load_split(folder)) is not None:
        return kept
    train, validation = held_out_rows(contents, fraction, seed, name)
    with atomic_folder(folder, lambda there: _load_split(there) is not None) as aside:
        np.save(aside / "train.npy", train)
        np.save(aside / "validation.npy", validation)
    return train, validation


def _load_split(folder: Path) -> tuple[Rows, Rows] | None:
    """The cached split; None if it is missing or damaged."""
    try:
        return mapped_array(folder / "train.npy"), mapped_array(folder / "validation.npy")
    except (OSError, ValueError, EOFError):
        return None


def held_out(records: Sequence[Record], fraction: float, seed: int, name: str) -> tuple[list[Record], list[Record]]:
    """`held_out_rows` for records: those to train on and those to validate with, in their order."""
    contents = [content_hash(record.conversation) for record in records]
    train, validation = held_out_rows(contents, fraction, seed, name)
    return [records[row] for row in train], [records[row] for row in validation]


def held_out_rows(contents: Iterable[int], fraction: float, seed: int, name: str) -> tuple[Rows, Rows]:
    """Row numbers to train on and row numbers held out, both ascending, from one content hash per row.

    Contents are held out in the order of a hash of (seed, content), as long as their rows fit into `fraction` of all
    rows, rounded and at least one. A content with more rows than are left is skipped; if all have too many, the one
    with the fewest is held out.

    Raises:
        ConfigError: `fraction` is not between 0 and 1.
        DataError: there are fewer than two different contents.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"the validation fraction must be between 0 and 1, not {fraction}")
    each = contents if isinstance(contents, np.ndarray) else np.fromiter(contents, dtype=np.uint64)
    different, counts = np.unique(each, return_counts=True)
    if len(different) < 2:
        raise DataError(
            f"{name}: nothing can be held out of {len(each)} rows with the same content; "
            "give validation a data set of its own"
        )
    order = by_rank(different, seed)
    counts = counts[order]
    chosen = _fitting(counts, max(1, round(fraction * len(each))))
    if not len(chosen):
        chosen = np.array([counts.argmin()])
    is_held_out = _is_among(each, np.sort(different[order[chosen]]))
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def _fitting(counts: npt.NDArray[np.int64], target: int) -> npt.NDArray[np.int64]:
    """Indices of the counts taken, in order, each if the sum stays at most `target`; never all of them.

    Consecutive counts that fit are taken at once. A count larger than what is left of `target` will not fit later.
    """
    chosen = [np.zeros(0, dtype=np.int64)]
    places, most = np.arange(len(counts)), len(counts) - 1
    while target and most and len(places := places[counts[places] <= target]):
        sums = counts[places].cumsum()
        fit = min(int(sums.searchsorted(target, side="right")), most)
        chosen.append(places[:fit])
        target -= int(sums[fit - 1])
        most -= fit
        places = places[fit:]
    return np.concatenate(chosen)


def by_rank(contents: Contents, seed: int) -> npt.NDArray[np.int64]:
    """Indices of the contents in the order in which they are held out, by 128-bit hashes of (seed, content)."""
    keyed = hashlib.blake2b(key=str(seed).encode(), digest_size=16)
    ranks = np.empty((len(contents), 2), dtype=np.uint64)
    for start in range(0, len(contents), _STRETCH):
        texts = contents[start : start + _STRETCH].astype(">u8").tobytes()
        hashes = bytearray()
        for place in range(0, len(texts), 8):
            hasher = keyed.copy()
            hasher.update(texts[place : place + 8])
            hashes += hasher.digest()
        ranks[start : start + _STRETCH] = np.frombuffer(hashes, dtype=">u8").reshape(-1, 2)
    return np.lexsort((ranks[:, 1], ranks[:, 0]))


def _is_among(contents: Contents, wanted: Contents) -> npt.NDArray[np.bool_]:
    """Mask of the contents that are in `wanted`, which is sorted and not empty."""
    found = np.empty(len(contents), dtype=np.bool_)
    for start in range(0, len(contents), _STRETCH):
        stretch = contents[start : start + _STRETCH]
        places = np.minimum(wanted.searchsorted(stretch), len(wanted) - 1)
        found[start : start + _STRETCH] = wanted[places] == stretch
    return found
