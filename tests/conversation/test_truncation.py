"""Truncating rows that are too long: what is kept and which outcome is reported."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.conversation.masks import TokenRow
from posttrain.conversation.truncation import Outcome, truncate
from posttrain.errors import DataError

# Prompt 0 1 2, answer 3 4 with its end token 5, newline 6.
ROW = TokenRow([0, 1, 2, 3, 4, 5, 6], [False, False, False, True, True, True, False])


def test_a_row_that_fits_is_kept_as_it_is():
    for policy in ("error", "drop", "left", "right"):
        assert truncate(ROW, 7, policy) == (ROW, Outcome.KEPT)


def test_error_names_the_length_the_limit_and_the_way_out():
    with pytest.raises(DataError, match="has 7 tokens, the limit is 6: raise max_length"):
        truncate(ROW, 6, "error")


def test_drop_leaves_the_row_out():
    assert truncate(ROW, 6, "drop") == (None, Outcome.DROPPED_TOO_LONG)


def test_left_keeps_the_last_tokens():
    kept, outcome = truncate(ROW, 5, "left")
    assert outcome is Outcome.CUT_LEFT
    assert kept == TokenRow([2, 3, 4, 5, 6], [False, True, True, True, False])


def test_right_may_lose_untrained_tokens_only():
    assert truncate(ROW, 6, "right") == (TokenRow(ROW.ids[:6], ROW.trained[:6]), Outcome.CUT_RIGHT)


def test_an_answer_that_lost_its_end_token_is_called_so():
    assert truncate(ROW, 5, "right") == (TokenRow(ROW.ids[:5], ROW.trained[:5]), Outcome.CUT_ANSWER)


def test_a_prompt_longer_than_the_limit_leaves_nothing_to_train_and_is_never_trained_itself():
    assert truncate(ROW, 3, "right") == (None, Outcome.NOTHING_TRAINED)
    assert truncate(ROW, 1, "left") == (None, Outcome.NOTHING_TRAINED)


def test_a_short_row_without_a_trained_token_is_reported_too():
    assert truncate(TokenRow([1, 2], [False, False]), 5, "drop") == (None, Outcome.NOTHING_TRAINED)


def test_a_limit_below_one_is_refused_instead_of_keeping_everything():
    with pytest.raises(ValueError, match="at least 1"):
        truncate(ROW, 0, "left")


FLAGS = st.lists(st.booleans(), max_size=12)


@given(FLAGS, st.integers(1, 12), st.sampled_from(["drop", "left", "right"]))
def test_what_is_kept_is_one_end_of_the_row_and_has_something_to_train(flags, limit, policy):
    row = TokenRow(list(range(len(flags))), flags)
    kept, outcome = truncate(row, limit, policy)
    assert (kept is None) == (outcome in {Outcome.DROPPED_TOO_LONG, Outcome.NOTHING_TRAINED})
    if kept is not None:
        size = min(limit, len(flags))
        assert kept.ids == (row.ids[-size:] if policy == "left" else row.ids[:size])
        assert kept.trained == [flags[id_] for id_ in kept.ids]
        assert any(kept.trained)


@given(FLAGS, st.integers(1, 12))
def test_an_end_token_is_lost_on_the_right_exactly_when_the_outcome_says_so(flags, limit):
    row = TokenRow(list(range(len(flags))), flags)
    kept, outcome = truncate(row, limit, "right")
    if kept is not None:
        ends = [at for at, (now, then) in enumerate(pairwise([*flags, False])) if now and not then]
        lost = [end for end in ends if end not in kept.ids]
        assert bool(lost) == (outcome is Outcome.CUT_ANSWER)
