"""Which control tokens end a turn and which begin one, found by having a chat template write short conversations.

Nothing in a tokenizer's files says so: its eos may end a text and not a turn. But what stands behind two different
answers alike is the template's, and the first control token in it ends the answer's turn.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from posttrain.conversation.templates import Apply
from posttrain.errors import DataError

_ASKED = {"role": "user", "content": "a"}
_ANSWERS = ("b", "c d")


@dataclass(frozen=True)
class TurnTokens:
    """Ids of the tokens that end an assistant's turn, and of those that begin the next turn of anyone."""

    ends: frozenset[int]
    starts: frozenset[int]


def template_turns(apply: Apply, is_control: Callable[[int], bool]) -> TurnTokens:
    """What `apply` writes at the borders of turns; nothing where it refuses plain conversations.

    Where it ends an answer otherwise once the conversation goes on, an answer may have several parts, and the token
    that begins a turn may begin a part: then none counts as a start.
    """
    ends = _behind_an_answer(apply, is_control)[:1]
    following = _behind_an_answer(apply, is_control, _ASKED)
    starts = []
    if ends and following[:1] == ends:
        starts = following[1:2] + _opening(apply, is_control)[:1]
    return TurnTokens(frozenset(ends), frozenset(starts) - frozenset(ends))


def _behind_an_answer(apply: Apply, is_control: Callable[[int], bool], *following: dict[str, Any]) -> list[int]:
    """The control tokens behind an answer, in their order."""
    try:
        one, other = (
            apply([_ASKED, {"role": "assistant", "content": answer}, *following], False) for answer in _ANSWERS
        )
    except DataError:
        return []
    shared = _shared(reversed(one), reversed(other))
    return [token for token in reversed(shared) if is_control(token)]


def _opening(apply: Apply, is_control: Callable[[int], bool]) -> list[int]:
    """The control tokens that ask for an answer, in their order."""
    try:
        asked, prompt = (apply([_ASKED], opened) for opened in (False, True))
    except DataError:
        return []
    return [token for token in prompt[len(_shared(asked, prompt)) :] if is_control(token)]


def _shared(one: Iterable[int], other: Iterable[int]) -> list[int]:
    """The ids that both begin with."""
    return [here for here, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
