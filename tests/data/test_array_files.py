"""Arrays that grow on disk and are then memory-mapped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.token_arrays import growing_arrays, mapped_array

TYPES = (np.int32, np.int64, np.uint64, np.float32, np.bool_)


@given(pieces=st.lists(st.lists(st.integers(0, 1), max_size=20), max_size=5), dtype=st.sampled_from(TYPES))
def test_pieces_are_one_array_that_numpy_can_read(tmp_path_factory, pieces, dtype):
    folder = tmp_path_factory.mktemp("arrays")
    with growing_arrays(folder, {"a": dtype, "b": np.int64}) as arrays:
        for piece in pieces:
            arrays["a"].append(np.array(piece, dtype=dtype))
            arrays["b"].append(np.arange(len(piece)))
    whole = [value for piece in pieces for value in piece]
    assert arrays["a"].length == len(whole)
    for read in (np.load(folder / "a.npy"), mapped_array(folder / "a.npy")):
        assert (read.dtype, read.tolist()) == (np.dtype(dtype), np.array(whole, dtype=dtype).tolist())
    assert mapped_array(folder / "b.npy").tolist() == [at for piece in pieces for at in range(len(piece))]


def test_values_are_written_in_the_arrays_own_type(tmp_path):
    with growing_arrays(tmp_path, {"a": np.int32}) as arrays:
        arrays["a"].append(np.array([1, 2, 3, 4], dtype=np.int64)[::2])
    assert mapped_array(tmp_path / "a.npy").dtype == np.int32
    assert mapped_array(tmp_path / "a.npy").tolist() == [1, 3]


def test_where_the_block_fails_nothing_counts_as_written(tmp_path):
    with pytest.raises(RuntimeError), growing_arrays(tmp_path, {"a": np.int32}) as arrays:
        arrays["a"].append(np.array([1, 2], dtype=np.int32))
        raise RuntimeError
    assert mapped_array(tmp_path / "a.npy").tolist() == []


def test_a_mapped_array_cannot_be_written_to_and_is_no_copy(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    array = mapped_array(tmp_path / "a.npy")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    assert isinstance(array.base, np.memmap)
