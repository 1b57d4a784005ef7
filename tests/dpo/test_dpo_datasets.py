"""Data sets of pairs and of labelled answers: subsets, concatenation and digests."""

import numpy as np
import pytest

from posttrain.conversation.masks import TokenRow
from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.data.curriculum.micro_batches import MicroBatchSize
from posttrain.data.curriculum.step_plan import StepPlanner
from posttrain.data.ledger import Ledger
from posttrain.data.tokenized import TokenizedDataset
from posttrain.dpo.datasets import LabelledDataset, PairedDataset, concatenate
from token_rows import from_rows


def side(name: str, *answers: list[int], prompt: int = 1, start: int = 0) -> TokenizedDataset:
    """Rows of a one-token prompt and an answer; row r has line and weight r + 1 and content r, all plus `start`."""
    rows = [TokenRow([prompt, *answer], [False] + [True] * len(answer)) for answer in answers]
    records = [(start + row + 1, start + row + 1.0, start + row) for row in range(len(rows))]
    return from_rows(name, rows, records, Ledger(name), "digest")


def pairs(name: str = "d", start: int = 0) -> PairedDataset:
    chosen = side(name, [10], [11, 12], [13], start=start)
    rejected = side(name, [20, 21, 22], [23], [24], start=start)
    return PairedDataset(name, chosen, rejected, Ledger(name), "digest")


def test_sizes_are_those_of_both_sides():
    sizes = pairs().sizes()
    assert [list(each) for each in (sizes.lengths, sizes.trained_counts, sizes.weights)] == [
        [6, 5, 4],
        [4, 3, 2],
        [1, 2, 3],
    ]
    assert sizes.padded is not None
    assert [sizes.padded[row] for row in range(3)] == [2 * 4, 2 * 3, 2 * 2]


@pytest.mark.parametrize(
    ("tokens", "padding_free", "ranks", "expected", "computed"),
    [
        # Sides of 10 and 4, 7 and 6, 3 and 2 tokens. Padded, two pairs are 4 sides of 10; with the third, 6 are 60.
        (40, False, 1, [(0, 1), (2,)], 40 + 6),
        (39, False, 1, [(0,), (1, 2)], 20 + 28),
        (59, False, 1, [(0, 1), (2,)], 40 + 6),
        (60, False, 1, [(0, 1, 2)], 60),
        # Three ranks need three.
        (60, False, 3, [(0,), (1,), (2,)], 20 + 14 + 6),
        # Without padding, the first two pairs are 14 + 13, and all are 32.
        (27, True, 1, [(0, 1), (2,)], 32),
        (26, True, 1, [(0,), (1, 2)], 32),
        (32, True, 1, [(0, 1, 2)], 32),
    ],
)
def test_a_micro_batch_of_so_many_tokens_counts_both_sides_and_their_padding(
    tokens: int,
    padding_free: bool,
    ranks: int,
    expected: list[tuple[int, ...]],
    computed: int,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    lengths = [(10, 4), (7, 6), (3, 2)]
    chosen, rejected = (side("d", *([9] * (length - 1) for length in each)) for each in zip(*lengths, strict=True))
    sizes = {"d": PairedDataset("d", chosen, rejected, Ledger("d"), "digest").sizes()}
    curriculum = Curriculum([Stage("all", 1, {"d": 1})], {"d": 3}, 3, 0)
    plan = StepPlanner(curriculum, sizes, MicroBatchSize(1, tokens, padding_free)).plan(0)
    assert [tuple(plan.draws[slot].row for slot in slots) for slots in plan.micro_batches] == expected
    assert (plan.tokens, plan.computed_tokens) == (32, computed)


def test_a_subset_takes_the_same_rows_of_both_sides_in_the_order_given():
    part = pairs().subset(np.array([2, 0]), "part")
    assert (part.name, len(part), part.digest) == ("part", 2, "digest")
    assert [part.chosen.row(row)[0].tolist() for row in range(2)] == [[1, 13], [1, 10]]
    assert [part.rejected.row(row)[0].tolist() for row in range(2)] == [[1, 24], [1, 20, 21, 22]]
    assert (part.weights.tolist(), part.contents.tolist()) == ([3, 1], [2, 0])


def test_a_subset_of_labelled_answers_keeps_their_labels():
    part = LabelledDataset.from_pairs(pairs()).subset(np.array([5, 0, 1]), "part")
    assert part.desirable.tolist() == [False, True, True]
    assert [part.completions.row(row)[0].tolist() for row in range(3)] == [[1, 24], [1, 10], [1, 11, 12]]
    assert list(part.sizes().lengths) == [2, 2, 3]


def test_data_sets_of_one_kind_are_put_one_after_another():
    whole = concatenate([pairs("a"), pairs("b", start=7)], "both")
    assert isinstance(whole, PairedDataset)
    assert (whole.name, len(whole), whole.weights.tolist()) == ("both", 6, [1, 2, 3, 8, 9, 10])
    assert whole.rejected.row(3)[0].tolist() == [1, 20, 21, 22]
    labelled = concatenate([LabelledDataset.from_pairs(pairs("a")), LabelledDataset.from_pairs(pairs("b"))], "both")
    assert isinstance(labelled, LabelledDataset)
    assert labelled.desirable.tolist() == [True] * 3 + [False] * 3 + [True] * 3 + [False] * 3


def test_the_digest_of_rows_changes_with_tokens_flags_order_and_sides_but_not_with_names():
    whole = pairs()
    swapped = PairedDataset("d", whole.rejected, whole.chosen, whole.ledger, "digest")
    longer_prompt = PairedDataset("d", side("d", [10]), side("d", [20]), Ledger("d"), "digest")
    other_prompt = PairedDataset("d", side("d", [10], prompt=2), side("d", [20], prompt=2), Ledger("d"), "digest")
    digests = [
        each.rows_digest()
        for each in (whole, swapped, whole.subset(np.array([0, 2, 1]), "d"), longer_prompt, other_prompt)
    ]
    assert len(set(digests)) == 5
    assert pairs("other", start=4).rows_digest() == digests[0]


def test_where_a_row_ends_is_part_of_the_digest():
    one = PairedDataset("d", side("d", [1, 1], []), side("d", [2], [2]), Ledger("d"), "digest")
    other = PairedDataset("d", side("d", [1], [1]), side("d", [2], [2]), Ledger("d"), "digest")
    assert one.chosen.parts[0].ids.tolist() == other.chosen.parts[0].ids.tolist()
    assert one.rows_digest() != other.rows_digest()


def test_sides_of_different_lengths_are_no_pairs():
    with pytest.raises(ValueError, match="2 chosen rows, but 1 rejected ones"):
        PairedDataset("d", side("d", [1], [2]), side("d", [3]), Ledger("d"), "digest")
    with pytest.raises(ValueError, match="1 rows, but 2 labels"):
        LabelledDataset("d", side("d", [1]), np.array([True, False]), Ledger("d"), "digest")
