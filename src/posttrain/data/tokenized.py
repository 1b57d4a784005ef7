"""Tokenised data sets in a content-addressed cache.

A data set is read, rendered, tokenised and truncated once for each (data, columns, template, tokenizer, length); a
second start maps the arrays from disk. The cache key covers all of these, so nothing stale can be read.

Rows are not copied: subsets and concatenations of data sets are row numbers into the arrays on disk.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from posttrain.base.files import atomic_folder, described_hash, remove_left_behind
from posttrain.base.locks import awaited_lock, lock_of
from posttrain.data.curriculum.step_plan import RowSizes
from posttrain.data.ledger import Ledger
from posttrain.data.token_arrays import ArrayFile, PickedValues, TokenArrays, growing_arrays, mapped_array

D = TypeVar("D")

# Raise it when the same inputs give different arrays, so that older caches are not read.
FORMAT_VERSION = 3

_EMPTY = TokenArrays.from_rows([], [])
_DTYPES = {field.name: getattr(_EMPTY, field.name).dtype for field in fields(TokenArrays)}


@dataclass(frozen=True)
class TokenizedDataset:
    """Rows of tokens with their per-row numbers.

    Attributes:
        parts: the arrays that hold the rows.
        rows: int64, shape [rows]; row numbers of the data set, counted through all parts. None for all rows in order.
    """

    name: str
    parts: tuple[TokenArrays, ...]
    ledger: Ledger
    digest: str
    rows: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self._ends[-1] if self.rows is None else len(self.rows)

    def row(self, index: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Token ids and trained flags of one row, each of shape [length]."""
        number = index if self.rows is None else int(self.rows[index])
        for part, end in zip(self.parts, self._ends, strict=True):
            if number < end:
                return part.row(number - end + len(part))
        raise IndexError(f"row {index} is not in range({len(self)})")

    @cached_property
    def weights(self) -> npt.NDArray[np.float32] | PickedValues:
        """Factor on each row's loss, shape [rows]."""
        return self._looked_up("weights")

    @property
    def lines(self) -> npt.NDArray[np.int64]:
        """The line of the source file that each row came from, shape [rows]."""
        return self._of_each("lines")

    @property
    def contents(self) -> npt.NDArray[np.uint64]:
        """Hash of each row's conversation, used to hold out validation rows, shape [rows]."""
        return self._of_each("contents")

    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens in each row, shape [rows]."""
        return self._of_each("lengths").astype(np.int64)

    def trained_counts(self) -> npt.NDArray[np.int64]:
        """Trained tokens in each row, shape [rows]."""
        return self._of_each("trained_counts").astype(np.int64)

    def prompt_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens before the first trained one of each row, shape [rows]."""
        return self._of_each("prompt_lengths").astype(np.int64)

    def sizes(self) -> RowSizes:
        """The per-row numbers that the step planner needs."""
        return RowSizes(self._looked_up("lengths"), self._looked_up("trained_counts"), self.weights)

    def token_digest(self) -> bytes:
        """Hash of the tokens and flags of all rows in order."""
        return hashlib.blake2b(np.ascontiguousarray(self._of_each("token_hashes")).data, digest_size=16).digest()

    def subset(self, rows: npt.NDArray[np.int64], name: str) -> "TokenizedDataset":
        """The given rows as a data set of their own, in the order given."""
        return replace(self, name=name, rows=rows if self.rows is None else self.rows[rows])

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(len(part) for part in self.parts))

    def _looked_up(self, array: str) -> npt.NDArray | PickedValues:
        """Like `_of_each`, but if there is only one part, nothing is read before it is accessed."""
        if self.rows is None or len(self.parts) != 1:
            return self._of_each(array)
        (part,) = self.parts
        return PickedValues(getattr(part, array), self.rows)

    def _of_each(self, array: str) -> npt.NDArray:
        """The values of one array for all rows, across the parts."""
        arrays = [getattr(part, array) for part in self.parts]
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return whole if self.rows is None else whole[self.rows]


def concatenate(datasets: Sequence[TokenizedDataset], name: str) -> TokenizedDataset:
    """All rows of `datasets`, one after another; the ledger and digest are those of the first."""
    parts = tuple(part for dataset in datasets for part in dataset.parts)
    rows = None
    if any(dataset.rows is not None for dataset in datasets):
        starts = accumulate((sum(map(len, dataset.parts)) for dataset in datasets), initial=0)
        rows = np.concatenate([start + _row_numbers(dataset) for start, dataset in zip(starts, datasets, strict=False)])
    return replace(datasets[0], name=name, parts=parts, rows=rows)


def _row_numbers(dataset: TokenizedDataset) -> npt.NDArray[np.int64]:
    return np.arange(len(dataset)) if dataset.rows is None else dataset.rows


def cache_key(parts: Mapping[str, object]) -> str:
    """Hash of everything that the arrays depend on, as 32 hex digits."""
    return described_hash({"format": FORMAT_VERSION, **parts})


class RowWriter:
    """Append rows to a data set on disk; memory use does not grow with them."""

    def __init__(self, arrays: Mapping[str, ArrayFile]) -> None:
        self._arrays = arrays

    def add(self, rows: TokenArrays) -> None:
        """Append `rows`."""
        tokens = self._arrays["ids"].length
        for name, array in self._arrays.items():
            array.append(rows.starts + tokens if name == "starts" else getattr(rows, name))


def made_once(folders: Sequence[Path], name: str, load: Callable[[], D | None], make: Callable[[], None]) -> D:
    """What `load` finds in the folders of a data set; if it finds nothing, `make` makes them first.

    One process makes them, and others that want them wait, also on machines that share the cache. What killed processes
    have left behind of them is removed.
    """
    if (found := load()) is None:
        with awaited_lock(lock_of(folders[0]), f"tokenising {name}"):
            if (found := load()) is None:
                for folder in folders:
                    remove_left_behind(folder)
                make()
                found = load()
    assert found is not None
    return found


@contextmanager
def new_dataset(folder: Path, ledger: Ledger, digest: str) -> Iterator[RowWriter]:
    """Writer of rows to `folder`, which appears with the ledger when the block ends, and never if the block fails."""
    with atomic_folder(folder, lambda there: load(there, ledger.name) is not None) as aside:
        with growing_arrays(aside, _DTYPES) as arrays:
            yield RowWriter(arrays)
        described = {"ledger": ledger.as_dict(), "digest": digest}
        (aside / "dataset.json").write_text(json.dumps(described, ensure_ascii=False), encoding="utf-8")


def load(folder: Path, name: str) -> TokenizedDataset | None:
    """The data set in `folder`, mapped from disk; None if it is missing or damaged."""
    try:
        described = json.loads((folder / "dataset.json").read_text(encoding="utf-8"))
        arrays = TokenArrays(**{array: mapped_array(folder / f"{array}.npy") for array in _DTYPES})
        ledger = Ledger(**{**described["ledger"], "name": name})
    except (OSError, ValueError, EOFError, LookupError, TypeError):
        return None
    return TokenizedDataset(name, (arrays,), ledger, described["digest"])
