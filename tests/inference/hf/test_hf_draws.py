"""A token is drawn where the sum of the probabilities up to it exceeds a number."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.errors import RunError
from posttrain.inference.engine import Sampling
from posttrain.inference.hf import draws
from posttrain.inference.hf.draws import Draws, draw, seeded


def drawn(probabilities: list[float], *numbers: float) -> list[int]:
    rows = torch.tensor([probabilities] * len(numbers))
    return draw(rows, torch.tensor(numbers, dtype=torch.float64)).tolist()


def test_each_token_is_drawn_by_the_numbers_of_its_share() -> None:
    # Sums: 0.25, 0.25, 0.75, 1.
    assert drawn([0.25, 0.0, 0.5, 0.25], 0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999) == [0, 0, 2, 2, 3, 3]


def test_shares_are_of_what_there_is_if_they_do_not_add_up_to_1() -> None:
    assert drawn([1.0, 3.0], 0.2499, 0.25) == [0, 1]


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12).filter(any), st.floats(0, 1, exclude_max=True), st.data())
def test_blocks_change_nothing_and_no_token_without_a_share_is_drawn(
    weights: list[int], number: float, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draws, "_BLOCK", data.draw(st.integers(1, 5)))
        (token,) = drawn([float(weight) for weight in weights], number)
    assert weights[token] > 0
    wanted = number * sum(weights)
    assert sum(weights[:token]) <= wanted + 1e-9
    assert sum(weights[: token + 1]) > wanted - 1e-9


def test_the_greatest_number_draws_the_last_token_that_has_a_share() -> None:
    assert drawn([0.1, 0.7, 0.2, 0.0], np.nextafter(1, 0)) == [2]


def test_tokens_come_as_often_as_the_temperature_and_the_filters_say() -> None:
    # At temperature 2 the probabilities of the three are as 1 : 2 : 4; the filter keeps the two likeliest.
    logits = torch.tensor([[0.0, 2 * np.log(2), 2 * np.log(4)]] * 4000)
    sampled = Draws(Sampling(1, temperature=2.0, top_k=2), [seeded(row) for row in range(4000)])
    counts = sampled(None, logits).argmax(-1).bincount(minlength=3)
    assert counts[0] == 0
    assert counts[2] / 4000 == pytest.approx(2 / 3, abs=0.03)


def test_a_row_keeps_its_own_numbers_whoever_is_beside_it() -> None:
    logits = torch.zeros(3, 50)
    sampling = Sampling(1, temperature=1.0)
    together = Draws(sampling, [seeded(1), seeded(2), seeded(3)])(None, logits).argmax(-1)
    alone = Draws(sampling, [seeded(2)])(None, logits[:1]).argmax(-1)
    assert together[1] == alone[0]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_not_drawn_from(wrong: float) -> None:
    logits = torch.zeros(2, 50)
    logits[1, 30] = wrong
    with pytest.raises(RunError, match="not finite"):
        Draws(Sampling(1, temperature=1.0), [seeded(1), seeded(2)])(None, logits)
