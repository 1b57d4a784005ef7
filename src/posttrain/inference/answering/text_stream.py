"""Decode a completion token by token into text that is never taken back."""

from collections.abc import Sequence
from typing import Any

from posttrain.conversation.encoder import REPLACEMENT
from posttrain.inference.engine import decode


class TextStream:
    """The text of one completion, in pieces that together are `completion_text`.

    A piece is held back while its last character may be incomplete (a token may end within one), or while its end may
    be the beginning of a stop string.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._ids: list[int] = []
        # Tokens before `_read` have become text; those from `_start` on are decoded again as context, because some
        # tokenizers drop the blank at the beginning of a text.
        self._start = self._read = 0
        self._held = ""
        self._has_stopped = False

    def add(self, tokens: Sequence[int]) -> str:
        """Take the next tokens, without an end token; return the text that is now certain, which may be empty."""
        self._ids += tokens
        new = self._undecided()
        if new.endswith(REPLACEMENT):
            return ""
        if new:
            self._start, self._read = self._read, len(self._ids)
        return self._certain(new)

    def finish(self) -> str:
        """The rest of the text, once the completion has ended."""
        rest = self._certain(self._undecided()) + self._held
        self._held, self._read, self._has_stopped = "", len(self._ids), True
        return rest

    def _undecided(self) -> str:
        context = decode(self._tokenizer, self._ids[self._start : self._read])
        text = decode(self._tokenizer, self._ids[self._start :])
        if text.startswith(context):
            return text[len(context) :]
        return decode(self._tokenizer, self._ids[self._read :])

    def _certain(self, new: str) -> str:
        if self._has_stopped:
            return ""
        text = self._held + new
        found = [position for string in self._stop if (position := text.find(string)) >= 0]
        if found:
            self._held, self._has_stopped = "", True
            return text[: min(found)]
        certain = len(text) - max((_overlap(text, string) for string in self._stop), default=0)
        self._held = text[certain:]
        return text[:certain]


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` with which `string` begins."""
    longest = min(len(text), len(string) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(string[:length])), 0)
