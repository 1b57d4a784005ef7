"""From positions of the run to tensors."""

import numpy as np
import pytest
import torch

from posttrain.conversation.masks import IGNORED_LABEL, TokenRow
from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.data.ledger import Ledger
from posttrain.data.step_plan import StepPlanner
from posttrain.data.tokenized import from_rows
from posttrain.train.batches import CurriculumCollator, pad_rows, positions

N = IGNORED_LABEL


def row(ids: list[int], trained: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(ids, dtype=np.int32), np.array(trained, dtype=np.bool_)


def test_each_position_predicts_the_token_after_it():
    inputs, labels = pad_rows([row([5, 6, 7, 8], [0, 0, 1, 1])])
    assert inputs.tolist() == [[5, 6, 7]]
    assert labels.tolist() == [[N, 7, 8]]


def test_shorter_rows_are_padded_on_the_right_and_padding_has_no_label():
    inputs, labels = pad_rows([row([5, 6, 7, 8, 9], [0, 1, 0, 1, 1]), row([1, 2, 3], [0, 0, 1])])
    assert inputs.tolist() == [[5, 6, 7, 8], [1, 2, 0, 0]]
    assert labels.tolist() == [[6, N, 8, 9], [N, 3, N, N]]
    assert (inputs.dtype, labels.dtype) == (torch.int64, torch.int64)


def test_the_padding_id_as_a_trained_token_is_still_trained():
    inputs, labels = pad_rows([row([5, 0, 0], [0, 1, 1])])
    assert inputs.tolist() == [[5, 0]]
    assert labels.tolist() == [[0, 0]]


def test_nothing_predicts_the_first_token():
    assert pad_rows([row([5, 6], [1, 0])])[1].tolist() == [[N]]


def test_rows_mapped_from_a_read_only_file_are_not_written_to(tmp_path):
    np.save(tmp_path / "ids.npy", np.array([5, 6, 7], dtype=np.int32))
    ids = np.load(tmp_path / "ids.npy", mmap_mode="r")
    inputs, _ = pad_rows([(ids, np.array([False, True, True]))])
    inputs += 1
    assert ids.tolist() == [5, 6, 7]


def test_positions_count_from_zero_and_each_is_a_plain_number():
    placeholder = positions(5)
    assert len(placeholder) == 5
    assert [placeholder[at] for at in (0, 4)] == [{"position": 0}, {"position": 4}]
    assert type(placeholder[3]["position"]) is int


@pytest.fixture
def collator():
    """Four rows of 3, 5, 2 and 4 tokens; row r holds the ids 10·r and following, all but the first trained."""
    lengths = [3, 5, 2, 4]
    rows = [TokenRow([10 * r + place for place in range(n)], [False] + [True] * (n - 1)) for r, n in enumerate(lengths)]
    records = [(r + 1, weight, r) for r, weight in enumerate([1.0, 0.5, 2.0, 1.0])]
    dataset = from_rows("a", rows, records, Ledger("a"), "")
    curriculum = Curriculum([Stage("only", 2, {"a": 1})], {"a": 4}, rows_per_step=4, seed=0)
    return CurriculumCollator(StepPlanner(curriculum, {"a": dataset.sizes()}, 2), {"a": dataset})


def test_a_batch_holds_the_rows_that_the_plan_has_for_its_positions(collator):
    # The longest first: rows 1 and 3, then rows 0 and 2. The step's loss is divided by
    # 1 × 2 + 0.5 × 4 + 2 × 1 + 1 × 3 = 9.
    first = collator([{"position": 0}, {"position": 1}])
    assert first["input_ids"].tolist() == [[10, 11, 12, 13], [30, 31, 32, 0]]
    assert first["labels"].tolist() == [[11, 12, 13, 14], [31, 32, 33, N]]
    assert first["row_weights"].tolist() == [0.5, 1.0]
    second = collator([{"position": 2}, {"position": 3}])
    assert second["input_ids"].tolist() == [[0, 1], [20, 0]]
    assert second["labels"].tolist() == [[1, 2], [21, N]]
    assert second["row_weights"].tolist() == [1.0, 2.0]
    assert first["loss_weight"].item() == second["loss_weight"].item() == 9.0


def test_the_weights_of_a_steps_labels_add_up_to_its_loss_weight(collator):
    total = 0.0
    for start in (4, 6):
        batch = collator([{"position": start}, {"position": start + 1}])
        labelled = (batch["labels"] != IGNORED_LABEL).sum(dim=1)
        total += float((batch["row_weights"] * labelled).sum())
    assert total == batch["loss_weight"].item()


def test_rows_are_counted_as_they_are_fetched(collator):
    collator([{"position": 0}, {"position": 1}])
    collator([{"position": 2}])
    assert collator.rows_fetched == 3
