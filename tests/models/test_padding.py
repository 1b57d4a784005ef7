"""Inputs and labels of rows that go through a model together."""

import numpy as np
import torch

from posttrain.conversation.masks import IGNORED_LABEL as N
from posttrain.models.padding import pad_rows


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
