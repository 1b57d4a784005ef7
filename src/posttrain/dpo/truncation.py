"""Truncate or drop pairs that are too long; a pair is cut as a whole.

Cut on the left, both sides lose the same tokens of the prompt, as many as the longer side needs, so that they still
answer to one prompt; an answer loses none. Cut on the right, each side loses the end of its own answer.
"""

from collections.abc import Sequence
from enum import StrEnum

from posttrain.conversation.masks import TokenRow
from posttrain.conversation.truncation import Truncation
from posttrain.errors import DataError


class Fate(StrEnum):
    """What became of the answers to one prompt; the first three kept them, and the others are why they are gone."""

    KEPT = "kept"
    CUT_LEFT = "cut left"
    CUT_RIGHT = "cut right"
    TOO_LONG = "too long"
    PROMPT_TOO_LONG = "prompt too long"
    """The prompt fills the context alone, so that no token of an answer has room."""
    SAME = "identical answers"
    """Both answers become the same tokens; the ledger calls those so too that say the same."""
    IDENTICAL = "identical once cut"
    """What is left of both answers is the same."""
    NOTHING_TRAINED = "nothing to train"
    """The cut took all that is trained of an answer."""


def truncate_answers(
    prompt_tokens: int, rows: Sequence[TokenRow], max_length: int, policy: Truncation
) -> tuple[list[TokenRow], Fate]:
    """The rows, each of `prompt_tokens` and an answer, in at most `max_length` tokens; none where they are dropped.

    Raises:
        DataError: one is longer and the policy is error.
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
