"""Truncate or drop pairs that are too long; a pair is cut as a whole.

A cut on the left removes the same prompt tokens from both sides, as many as the longer side needs, so that both still
answer the same prompt; answers lose nothing. A cut on the right removes the end of each side's own answer.
"""

from collections.abc import Sequence
from enum import StrEnum

from posttrain.conversation.masks import TokenRow
from posttrain.conversation.truncation import Truncation
from posttrain.errors import DataError


class Fate(StrEnum):
    """What happened to the answers to one prompt: the first three mean kept, the others say why they were dropped."""

    KEPT = "kept"
    CUT_LEFT = "cut left"
    CUT_RIGHT = "cut right"
    TOO_LONG = "too long"
    PROMPT_TOO_LONG = "prompt too long"
    """The prompt alone fills the context, which leaves no room for an answer token."""
    SAME = "identical answers"
    """Both answers become the same tokens; the ledger also uses this name for answers with the same text."""
    IDENTICAL = "identical once cut"
    """Both answers are the same after the cut."""
    NOTHING_TRAINED = "nothing to train"
    """The cut removed every trained token of an answer."""


def truncate_answers(
    prompt_tokens: int, rows: Sequence[TokenRow], max_length: int, policy: Truncation
) -> tuple[list[TokenRow], Fate]:
    """The rows cut to at most `max_length` tokens, or none if they are dropped.

    Each row consists of `prompt_tokens` prompt tokens and an answer.

    Raises:
        DataError: a row is longer and the policy is error.
    """
    longest = max(len(row.ids) for row in rows)
    if longest <= max_length:
        return list(rows), Fate.KEPT
    if policy == "error":
        raise DataError(
            f"prompt and answer have {longest} tokens, the limit is {max_length}: raise chat.max_length, shorten them, "
            "or set chat.truncation to drop, left or right"
        )
    surplus = longest - max_length
    if policy == "left" and surplus < prompt_tokens:
        return [TokenRow(row.ids[surplus:], row.trained[surplus:]) for row in rows], Fate.CUT_LEFT
    if prompt_tokens >= max_length:
        return [], Fate.PROMPT_TOO_LONG
    if policy != "right":
        return [], Fate.TOO_LONG
    cut = [TokenRow(row.ids[:max_length], row.trained[:max_length]) for row in rows]
    if not all(any(row.trained) for row in cut):
        return [], Fate.NOTHING_TRAINED
    if len(cut) == 2 and cut[0].ids == cut[1].ids:
        return [], Fate.IDENTICAL
    return cut, Fate.CUT_RIGHT
