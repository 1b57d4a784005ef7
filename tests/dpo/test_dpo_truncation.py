"""Both sides of a pair are cut together: the prompts stay equal, and no answer is cut on the left."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.conversation.masks import TokenRow
from posttrain.dpo.truncation import Fate, truncate_answers
from posttrain.errors import DataError

PROMPT = [1, 2, 3, 4]


def row(*answer: int) -> TokenRow:
    """The untrained prompt of 4 tokens and a trained answer."""
    return TokenRow([*PROMPT, *answer], [False] * 4 + [True] * len(answer))


PAIR = [row(10, 11, 99), row(20, 99)]  # 7 and 6 tokens


def cut(max_length: int, policy: str, rows: list[TokenRow] = PAIR) -> tuple[list[list[int]], Fate]:
    kept, fate = truncate_answers(4, rows, max_length, policy)  # type: ignore[arg-type]
    for each in kept:
        assert each.trained == [token > 9 for token in each.ids]
    return [each.ids for each in kept], fate


@pytest.mark.parametrize("policy", ["error", "drop", "left", "right"])
def test_a_pair_that_fits_is_kept_by_every_policy(policy: str):
    assert cut(7, policy) == ([[1, 2, 3, 4, 10, 11, 99], [1, 2, 3, 4, 20, 99]], Fate.KEPT)


def test_cut_on_the_left_both_sides_lose_what_the_longer_one_needs():
    assert cut(6, "left") == ([[2, 3, 4, 10, 11, 99], [2, 3, 4, 20, 99]], Fate.CUT_LEFT)
    assert cut(4, "left") == ([[4, 10, 11, 99], [4, 20, 99]], Fate.CUT_LEFT)


def test_an_answer_is_never_cut_on_the_left_and_keeps_a_token_before_it():
    # At 3 tokens nothing of the prompt would be left to predict the answer's first token.
    assert cut(3, "left") == ([], Fate.PROMPT_TOO_LONG)
    long_answers = [row(*range(10, 20)), row(20)]
    assert cut(10, "left", long_answers) == ([], Fate.TOO_LONG)


def test_cut_on_the_right_each_side_loses_the_end_of_its_own_answer():
    assert cut(6, "right") == ([[1, 2, 3, 4, 10, 11], [1, 2, 3, 4, 20, 99]], Fate.CUT_RIGHT)
    assert cut(5, "right") == ([[1, 2, 3, 4, 10], [1, 2, 3, 4, 20]], Fate.CUT_RIGHT)


@pytest.mark.parametrize("policy", ["drop", "right"])
def test_a_prompt_that_leaves_no_room_for_an_answer_is_told_apart(policy: str):
    assert cut(4, policy) == ([], Fate.PROMPT_TOO_LONG)
    assert cut(5, "drop") == ([], Fate.TOO_LONG)


def test_a_pair_whose_answers_are_the_same_once_cut_is_dropped():
    assert cut(6, "right", [row(10, 11, 98), row(10, 11, 99)]) == ([], Fate.IDENTICAL)


def test_a_pair_of_which_nothing_trained_is_left_is_dropped():
    untrained_start = TokenRow([*PROMPT, 5, 5, 30], [False] * 6 + [True])
    kept, fate = truncate_answers(4, [untrained_start, row(20)], 6, "right")
    assert (kept, fate) == ([], Fate.NOTHING_TRAINED)


def test_under_the_policy_error_the_longer_side_is_named():
    with pytest.raises(DataError, match=r"prompt and answer have 7 tokens, the limit is 6: raise chat\.max_length"):
        cut(6, "error")


def test_a_single_answer_is_cut_likewise():
    assert cut(6, "left", [row(10, 11, 99)]) == ([[2, 3, 4, 10, 11, 99]], Fate.CUT_LEFT)
    assert cut(6, "right", [row(10, 11, 99)]) == ([[1, 2, 3, 4, 10, 11]], Fate.CUT_RIGHT)


@given(
    st.integers(1, 6),
    st.lists(st.integers(1, 6), min_size=1, max_size=2),
    st.integers(1, 14),
    st.sampled_from(["drop", "left", "right"]),
)
def test_whatever_is_kept_fits_and_its_prompts_are_equal(prompt: int, answers: list[int], limit: int, policy):
    rows = [
        TokenRow(
            [*range(prompt), *(100 * (side + 1) + token for token in range(length))], [False] * prompt + [True] * length
        )
        for side, length in enumerate(answers)
    ]
    kept, fate = truncate_answers(prompt, rows, limit, policy)
    assert bool(kept) == (fate in (Fate.KEPT, Fate.CUT_LEFT, Fate.CUT_RIGHT))
    prompts = {
        tuple(token for token, trained in zip(each.ids, each.trained, strict=True) if not trained) for each in kept
    }
    assert len(prompts) <= 1
    for each, before in zip(kept, rows, strict=False):
        assert len(each.ids) <= limit
        assert any(each.trained)
        assert not each.trained[0]
        if fate is Fate.CUT_LEFT:
            assert each.ids[-sum(before.trained) :] == before.ids[prompt:]
