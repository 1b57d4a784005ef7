"""Arrays written piece by piece as .npy files and then memory-mapped."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt


class ArrayFile:
    """A one-dimensional array that grows at its end."""

    def __init__(self, path: Path, dtype: npt.DTypeLike) -> None:
        self._file = path.open("xb")
        self._dtype = np.dtype(dtype)
        self.length = 0
        self._write_header()

    def append(self, values: npt.NDArray) -> None:
        """`values` of shape [n], to be written as they are in this array's type."""
        self._file.write(np.ascontiguousarray(values, dtype=self._dtype).data)
        self.length += len(values)

    def finish(self) -> None:
        """Say in the file how long it is, without which it is an array of nothing."""
        self._file.seek(0)
        self._write_header()

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()

    def _write_header(self) -> None:
        # numpy leaves room in the header for any length, so that a file can grow in place.
        described = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": described, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)


@contextmanager
def growing_arrays(folder: Path, dtypes: Mapping[str, npt.DTypeLike]) -> Iterator[dict[str, ArrayFile]]:
    """Arrays to append to, by name. They are `name.npy` in `folder` when the block ends, and empty if it fails."""
    with ExitStack() as stack:
        arrays = {name: ArrayFile(folder / f"{name}.npy", dtype) for name, dtype in dtypes.items()}
        for array in arrays.values():
            stack.callback(array.close)
        yield arrays
        for array in arrays.values():
            array.finish()


def mapped_array(path: Path) -> npt.NDArray:
    """The array in a .npy file, of which only what is looked at is read.

    Raises:
        OSError, ValueError, EOFError: there is none, or it is damaged.
    """
    # As a plain array: indexing a memmap costs microseconds.
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
