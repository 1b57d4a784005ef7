"""Rows of tokens as flat arrays, in .npy files that are written incrementally and then memory-mapped."""

import hashlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from posttrain.conversation.masks import TokenRow


class ArrayFile:
    """A one-dimensional array in a .npy file, written by appending."""

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self._file = path.open("xb")
        self._dtype = np.dtype(dtype)
        self.length = 0
        self._write_header()

    def append(self, values: npt.NDArray) -> None:
        """Append `values` of shape [n], converted to this array's dtype."""
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self.length += len(values)

    def finish(self) -> None:
        """Write the length into the file's header; until then the file holds an empty array."""
        self._file.seek(0)
        self._write_header()

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()

    def _write_header(self) -> None:
        # numpy leaves room in the header for any length, so a file can grow in place.
        described = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": described, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


@contextmanager
def growing_arrays(folder: Path, dtypes: Mapping[str, npt.DTypeLike]) -> Iterator[dict[str, ArrayFile]]:
    """Arrays to append to, by name. Each is `name.npy` in `folder`, complete when the block ends, empty if it fails."""
    with ExitStack() as stack:
        arrays = {name: ArrayFile(folder / f"{name}.npy", dtype) for name, dtype in dtypes.items()}
        for array in arrays.values():
            stack.callback(array.close)
        yield arrays
        for array in arrays.values():
            array.finish()


def mapped_array(path: Path) -> npt.NDArray:
    """The array in a .npy file, memory-mapped, so that only the parts accessed are read.

    Raises:
        OSError, ValueError, EOFError: the file is missing or damaged.
    """
    # As a plain array: indexing a memmap costs microseconds.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


@dataclass(frozen=True)
class TokenArrays:
    """Rows stored one after another. Row r is `ids[starts[r]:starts[r] + lengths[r]]`.

    Attributes:
        ids: int32, shape [tokens].
        trained: bool, shape [tokens]; which tokens carry loss.
        starts: int64, shape [rows].
        lengths: int32, shape [rows]; tokens in each row.
        trained_counts: int32, shape [rows]; tokens in each row that carry loss.
        prompt_lengths: int32, shape [rows]; tokens before the first one that carries loss, or all if none does.
        token_hashes: uint64, shape [rows]; hash of the row's ids and flags.
        lines: int64, shape [rows]; the line of the source file that the row came from.
        weights: float32, shape [rows]; factor on the row's loss.
        contents: uint64, shape [rows]; hash of the conversation, used to hold out validation rows.
    """

    ids: npt.NDArray[np.int32]
    trained: npt.NDArray[np.bool_]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    trained_counts: npt.NDArray[np.int32]
    prompt_lengths: npt.NDArray[np.int32]
    token_hashes: npt.NDArray[np.uint64]
    lines: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]
    contents: npt.NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(
        cls,
        ids: npt.NDArray[np.int32],
        trained: npt.NDArray[np.bool_],
        lengths: npt.NDArray[np.integer],
        described: Mapping[str, npt.NDArray],
    ) -> Self:
        """Compute all arrays that follow from the tokens; `described` has lines, weights and contents."""
        ends = np.cumsum(lengths, dtype=np.int64)
        starts = ends - lengths
        running = np.concatenate([[0], np.cumsum(trained, dtype=np.int64)])
        # Index of each row's first trained token, or the row's end if it has none.
        places = np.append(np.flatnonzero(trained), len(ids))
        first = np.minimum(places[np.searchsorted(places, starts)], ends) if len(starts) else starts
        return cls(
            ids=np.asarray(ids, dtype=np.int32),
            trained=np.asarray(trained, dtype=np.bool_),
            starts=starts,
            lengths=np.asarray(lengths, dtype=np.int32),
            trained_counts=(running[ends] - running[starts]).astype(np.int32),
            prompt_lengths=(first - starts).astype(np.int32),
            token_hashes=_token_hashes(ids, trained, starts, ends),
            lines=np.asarray(described["lines"], dtype=np.int64),
            weights=np.asarray(described["weights"], dtype=np.float32),
            contents=np.asarray(described["contents"], dtype=np.uint64),
        )

    @classmethod
    def from_rows(cls, rows: Sequence[TokenRow], records: Sequence[tuple[int, float, int]]) -> Self:
        """Build the arrays from rows; `records` has the line, the weight and the content hash of each."""
        lines, weights, contents = zip(*records, strict=True) if records else ((), (), ())
        ids = array("i")
        for row in rows:
            ids.fromlist(row.ids)
        return cls.of(
            np.frombuffer(ids, dtype=np.int32),
            np.frombuffer(b"".join(bytes(row.trained) for row in rows), dtype=np.bool_),
            np.fromiter((len(row.ids) for row in rows), dtype=np.int64, count=len(rows)),
            {
                "lines": np.array(lines, dtype=np.int64),
                "weights": np.array(weights, dtype=np.float32),
                "contents": np.array(contents, dtype=np.uint64),
            },
        )

    def row(self, index: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """Token ids and trained flags of one row, each of shape [length]."""
        start = int(self.starts[index])
        span = slice(start, start + int(self.lengths[index]))
        return self.ids[span], self.trained[span]

    def trained_of(self, ids: frozenset[int]) -> int:
        """Number of trained tokens that are in `ids`."""
        return int(np.isin(self.ids[self.trained], list(ids)).sum())


class PickedValues:
    """The values of some rows in a given order, looked up on access without copying the array."""

    def __init__(self, values: npt.NDArray, rows: npt.NDArray[np.int64]) -> None:
        self._values = values
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: Any) -> Any:
        """The value of one row, or an array with the values of several."""
        return self._values[self._rows[row]]

    def tolist(self) -> list[Any]:
        """The values of all rows."""
        return self[:].tolist()


def _token_hashes(
    ids: npt.NDArray[np.int32],
    trained: npt.NDArray[np.bool_],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint64]:
    hashes = bytearray()
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        digest = hashlib.blake2b(ids[start:end].data, digest_size=8)
        digest.update(trained[start:end].data)
        hashes += digest.digest()
    return np.frombuffer(bytes(hashes), dtype=np.uint64)
