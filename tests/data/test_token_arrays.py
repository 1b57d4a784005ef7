"""Token rows as flat arrays, and the counts per row."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from posttrain.conversation.masks import TokenRow, trained_ends
from posttrain.data.token_arrays import PickedValues, TokenArrays


def described(count: int) -> list[tuple[int, float, int]]:
    return [(row + 1, 1.0, row) for row in range(count)]


def test_the_numbers_of_each_row_follow_from_its_tokens():
    rows = [
        TokenRow([5, 6, 7, 8], [False, False, True, True]),
        TokenRow([], []),
        TokenRow([9], [True]),
        TokenRow([1, 2], [False, False]),
    ]
    arrays = TokenArrays.from_rows(rows, [(3, 0.5, 2**64 - 1), (4, 1.0, 0), (6, 2.0, 7), (7, 1.0, 7)])
    assert arrays.ids.tolist() == [5, 6, 7, 8, 9, 1, 2]
    assert arrays.trained.tolist() == [False, False, True, True, True, False, False]
    assert arrays.starts.tolist() == [0, 4, 4, 5]
    assert arrays.lengths.tolist() == [4, 0, 1, 2]
    assert arrays.trained_counts.tolist() == [2, 0, 1, 0]
    assert arrays.prompt_lengths.tolist() == [2, 0, 0, 2]
    assert arrays.lines.tolist() == [3, 4, 6, 7]
    assert arrays.weights.tolist() == [0.5, 1.0, 2.0, 1.0]
    assert arrays.contents.tolist() == [2**64 - 1, 0, 7, 7]


def test_equal_rows_have_equal_hashes_wherever_they_stand():
    rows = [
        TokenRow([1, 2], [False, True]),
        TokenRow([1, 2], [True, True]),
        TokenRow([2, 1], [False, True]),
        TokenRow([1, 2], [False, True]),
    ]
    hashes = TokenArrays.from_rows(rows, described(4)).token_hashes.tolist()
    assert hashes[0] == hashes[3]
    assert len(set(hashes)) == 3
    # Cached log-probabilities are looked up by this hash, so it must not change.
    assert hashes[0] == 16226498475824276654


def test_no_rows_are_empty_arrays_of_the_same_types():
    none, some = (TokenArrays.from_rows(rows, described(len(rows))) for rows in ([], [TokenRow([1], [True])]))
    assert len(none) == 0
    assert {name: array.dtype for name, array in vars(none).items()} == {
        name: array.dtype for name, array in vars(some).items()
    }


ROWS = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=6).map(
        lambda tokens: TokenRow([id_ for id_, _ in tokens], [flag for _, flag in tokens])
    ),
    max_size=8,
)


@given(ROWS, st.frozensets(st.integers(0, 9)))
def test_any_rows_come_back_and_are_counted_as_one_by_one(rows: list[TokenRow], ends: frozenset[int]):
    arrays = TokenArrays.from_rows(rows, described(len(rows)))
    assert [tuple(part.tolist() for part in arrays.row(at)) for at in range(len(rows))] == [
        (row.ids, row.trained) for row in rows
    ]
    assert arrays.trained_counts.tolist() == [sum(row.trained) for row in rows]
    assert arrays.prompt_lengths.tolist() == [[*row.trained, True].index(True) for row in rows]
    assert arrays.trained_of(ends) == sum(trained_ends(row, ends) for row in rows)


@given(ROWS)
def test_arrays_make_the_same_as_lists(rows: list[TokenRow]):
    from_lists = TokenArrays.from_rows(rows, described(len(rows)))
    from_arrays = TokenArrays.of(
        np.array([id_ for row in rows for id_ in row.ids], dtype=np.int32),
        np.array([flag for row in rows for flag in row.trained], dtype=np.bool_),
        np.array([len(row.ids) for row in rows], dtype=np.int64),
        {"lines": np.arange(len(rows)) + 1, "weights": np.ones(len(rows)), "contents": np.arange(len(rows))},
    )
    for name, array in vars(from_lists).items():
        assert array.tolist() == getattr(from_arrays, name).tolist(), name
        assert array.dtype == getattr(from_arrays, name).dtype, name


def test_picked_values_are_looked_up_by_row_one_or_several():
    values = np.array([0.5, 1.5, 2.5, 3.5], dtype=np.float32)
    picked = PickedValues(values, np.array([3, 1, 1]))
    assert (len(picked), picked[0], picked.tolist()) == (3, 3.5, [3.5, 1.5, 1.5])
    assert picked[[2, 0]].tolist() == [1.5, 3.5]
    values[1] = 7  # nothing was copied
    assert picked.tolist() == [3.5, 7, 7]
