"""Rows as one sequence: each token once, at the position of its own row."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.kernels.packing import pack
from posttrain.models.kernels.segmented_attention import Segment

N = IGNORED_LABEL
# A prompt of 3 tokens with answers of 2 and 3, and a row of its own. The last token of a row is only a label.
INPUTS = torch.tensor([[5, 6, 7, 20, 0], [8, 9, 0, 0, 0], [5, 6, 7, 30, 31]])
LABELS = torch.tensor([[N, N, 20, 21, N], [9, 10, N, N, N], [N, N, 30, 31, 32]])


def test_rows_follow_each_other_without_padding() -> None:
    packed = pack(INPUTS, LABELS)
    assert packed.input_ids.tolist() == [[5, 6, 7, 20, 8, 9, 5, 6, 7, 30, 31]]
    assert packed.labels.tolist() == [[N, N, 20, 21, 9, 10, N, N, 30, 31, 32]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4]]
    assert packed.segments == (Segment(0, 4), Segment(4, 6), Segment(6, 11))


def test_a_prompt_of_several_rows_comes_once_and_each_row_from_its_last_token_on() -> None:
    packed = pack(INPUTS, LABELS, worth_sharing=2)
    assert packed.input_ids.tolist() == [[5, 6, 7, 20, 8, 9, 7, 30, 31]]
    assert packed.labels.tolist() == [[N, N, 20, 21, 9, 10, 30, 31, 32]]
    assert packed.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4]]
    assert packed.segments == (Segment(0, 2), Segment(2, 4, 0, 2), Segment(4, 6), Segment(6, 9, 0, 2))


def test_what_follows_the_last_label_is_left_out() -> None:
    packed = pack(torch.tensor([[1, 2, 3, 4, 5]]), torch.tensor([[N, 3, N, N, N]]))
    assert packed.input_ids.tolist() == [[1, 2]]


def test_a_row_without_labels_is_one_token() -> None:
    packed = pack(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[N, N, N], [N, 6, N]]))
    assert packed.input_ids.tolist() == [[1, 4, 5]]


@given(st.data())
def test_labels_keep_their_order_and_see_the_tokens_of_their_row(data: st.DataObject) -> None:
    rows, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 8))
    few = st.lists(st.integers(0, 1), min_size=width, max_size=width)  # so that rows share prompts
    inputs = torch.tensor([data.draw(few) for _ in range(rows)])
    labels = torch.tensor([[N if each else 7 for each in data.draw(few)] for _ in range(rows)])
    packed = pack(inputs, labels, worth_sharing=1)
    seen = []
    for segment in packed.segments:
        for token in range(segment.first, segment.end):
            if packed.labels[0, token] != N:
                places = [*range(segment.prefix, segment.prefix_end), *range(segment.first, token + 1)]
                assert packed.positions[0, places].tolist() == list(range(len(places)))
                seen.append(packed.input_ids[0, places].tolist())
    expected = [inputs[row, : place + 1].tolist() for row, place in (labels != N).nonzero().tolist()]
    assert seen == expected
