"""Micro-batches of so many rows or tokens, with and without padding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.config.sections.training import TrainingConfig
from posttrain.data.curriculum.micro_batches import MicroBatchSize, cut

# Rows 2, 0, 3, 1, longest first.
LENGTHS, ORDER = [7, 2, 10, 4], [2, 0, 3, 1]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (MicroBatchSize(3), [(2, 0, 3), (1,)]),
        # Padded: 2 × 10 fit, 3 × 10 do not; 2 × 4 fit.
        (MicroBatchSize(3, tokens=20), [(2, 0), (3, 1)]),
        # Without padding: 10 + 7 fit, 10 + 7 + 4 do not.
        (MicroBatchSize(3, tokens=20, padding_free=True), [(2, 0), (3, 1)]),
        (MicroBatchSize(3, tokens=21, padding_free=True), [(2, 0, 3), (1,)]),
        # A row that is longer than the limit goes alone.
        (MicroBatchSize(3, tokens=9), [(2,), (0,), (3, 1)]),
        (MicroBatchSize(1, tokens=1000), [(2, 0, 3, 1)]),
    ],
)
def test_as_many_rows_as_fit_go_through_the_model_together(size: MicroBatchSize, expected: list[tuple[int, ...]]):
    assert cut(ORDER, LENGTHS, size) == expected


def test_what_is_computed_is_the_rows_with_their_padding():
    assert MicroBatchSize(1).computed([7, 2, 10]) == 30
    assert MicroBatchSize(1, padding_free=True).computed([7, 2, 10]) == 19


def test_every_rank_gets_as_many_micro_batches():
    # All four rows fit together; for two ranks they are halved, for four halved again.
    size = MicroBatchSize(1, tokens=100)
    assert cut(ORDER, LENGTHS, size, multiple=2) == [(2, 0), (3, 1)]
    assert cut(ORDER, LENGTHS, size, multiple=4) == [(2,), (0,), (3,), (1,)]
    assert cut(ORDER, LENGTHS, size, at_least=3) == [(2,), (0,), (3, 1)]


def by_the_definition(order: list[int], lengths: list[int], size: MicroBatchSize, multiple: int, at_least: int):
    """Row after row joins the last micro-batch if it fits; then the first of the largest is halved until all is met."""

    def computed(rows: list[int]) -> int:
        return size.computed([lengths[row] for row in rows])

    assert size.tokens is not None
    found: list[list[int]] = []
    for row in order:
        if found and computed([*found[-1], row]) <= size.tokens:
            found[-1].append(row)
        else:
            found.append([row])
    while len(found) % multiple or len(found) < at_least:
        largest = max((rows for rows in found if len(rows) > 1), key=computed)
        half = (len(largest) + 1) // 2
        place = found.index(largest)
        found[place : place + 1] = [largest[:half], largest[half:]]
    return [tuple(rows) for rows in found]


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12),
    st.integers(1, 80),
    st.integers(1, 4),
    st.booleans(),
    st.data(),
)
def test_each_row_is_in_one_and_none_is_larger_than_asked_for_in_any_order(
    lengths: list[int], tokens: int, ranks: int, padding_free: bool, data: st.DataObject
):
    lengths = lengths * ranks
    order = data.draw(st.permutations(range(len(lengths))))
    size, least = MicroBatchSize(1, tokens, padding_free), data.draw(st.integers(1, len(lengths) // ranks))
    found = cut(order, lengths, size, multiple=ranks, at_least=least)
    assert [row for rows in found for row in rows] == order
    assert found == by_the_definition(order, lengths, size, ranks, least)
    assert len(found) % ranks == 0 and len(found) >= least
    assert all(len(rows) == 1 or size.computed([lengths[row] for row in rows]) <= tokens for rows in found)


def test_the_size_is_that_of_the_config():
    assert MicroBatchSize.of(TrainingConfig(micro_batch_tokens=5), padding_free=True) == MicroBatchSize(4, 5, True)
    # The rows of a step need not be a multiple of a number of rows that is not used.
    assert TrainingConfig(rows_per_step=7, micro_batch_tokens=100).rows_per_step == 7
