"""Truncate or drop rows longer than `max_length`, by the config's policy.

The caller counts outcomes per data set. Two things are never silent: an answer that lost its end token (a model trained
on such rows learns not to stop), and a row with nothing left to train.
"""

from enum import StrEnum
from typing import Literal

from posttrain.conversation.masks import TokenRow
from posttrain.errors import DataError

Truncation = Literal["error", "drop", "left", "right"]
"""Raise an error, drop the row, or cut tokens off its start or its end."""


class Outcome(StrEnum):
    """What happened to one row; `DROPPED_TOO_LONG` and `NOTHING_TRAINED` mean that it is gone."""

    KEPT = "kept"
    """It fits and is unchanged."""
    DROPPED_TOO_LONG = "dropped_too_long"
    """It does not fit and was dropped."""
    CUT_LEFT = "cut_left"
    """It lost tokens at its start."""
    CUT_RIGHT = "cut_right"
    """It lost tokens at its end, none of them trained."""
    CUT_ANSWER = "cut_answer"
    """It lost trained tokens at its end, and with them the end token of an answer."""
    NOTHING_TRAINED = "nothing_trained"
    """It has no trained token: there was none, or the cut removed them all."""


def truncate(row: TokenRow, max_length: int, policy: Truncation) -> tuple[TokenRow | None, Outcome]:
    """The row cut to `max_length` tokens, or None if dropped, and its outcome; DataError under policy "error"."""
    if max_length < 1:
        raise ValueError(f"max_length must be at least 1, not {max_length}")
    length = len(row.ids)
    if length <= max_length:
        return _unless_untrained(row, Outcome.KEPT)
    if policy == "error":
        raise DataError(
            f"a conversation has {length} tokens, the limit is {max_length}: raise max_length, shorten it, "
            "or set truncation to drop, left or right"
        )
    if policy == "drop":
        return None, Outcome.DROPPED_TOO_LONG
    if policy == "left":
        return _unless_untrained(_slice(row, length - max_length, length), Outcome.CUT_LEFT)
    answer_cut = any(row.trained[max_length:])
    outcome = Outcome.CUT_ANSWER if answer_cut else Outcome.CUT_RIGHT
    return _unless_untrained(_slice(row, 0, max_length), outcome)


def _slice(row: TokenRow, start: int, stop: int) -> TokenRow:
    return TokenRow(row.ids[start:stop], row.trained[start:stop])


def _unless_untrained(row: TokenRow, outcome: Outcome) -> tuple[TokenRow | None, Outcome]:
    return (row, outcome) if any(row.trained) else (None, Outcome.NOTHING_TRAINED)
