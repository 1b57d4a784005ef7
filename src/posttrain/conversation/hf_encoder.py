"""A transformers tokenizer as a `TextEncoder`, duck-typed so that importing this costs nothing."""

import logging
from collections.abc import Sequence
from typing import Any

from posttrain.errors import ModelError

log = logging.getLogger(__name__)

REPLACEMENT = "\ufffd"
"""Unicode's own sign for a character that cannot be shown."""


class HfTextEncoder:
    """Encodes with every special token split into ordinary tokens, and none added.

    A character that the vocabulary cannot spell is written as U+FFFD, and reported once. Left alone it would
    become the unknown token, which may be a control token: SmolLM2's is `<|endoftext|>`, and its vocabulary
    lacks a few bytes, so that a stray U+0016 in a text would end it.

    Tokens that were added to a vocabulary as ordinary ones (`<think>` in some) stay whole; that is why
    `control_id` refuses a control token which is registered like that: anyone could type it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._control_ids: dict[str, int] = {}
        self._reported: set[str] = set()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; the tokenizer's own settings stay as they are."""
        unknown = self._tokenizer.unk_token_id
        encoded = self._encode(list(texts))
        if unknown is None:
            return encoded
        return [
            self._encode([self._spellable(text, unknown)])[0] if unknown in ids else ids
            for text, ids in zip(texts, encoded, strict=True)
        ]

    def control_id(self, token: str) -> int:
        """Id of a control token; ModelError if the vocabulary lacks it, or if typing it would give it."""
        if token not in self._control_ids:
            self._control_ids[token] = self._checked(token)
        return self._control_ids[token]

    def _checked(self, token: str) -> int:
        id_ = self._tokenizer.convert_tokens_to_ids(token)
        if id_ is None or (id_ == self._tokenizer.unk_token_id and token != self._tokenizer.unk_token):
            raise ModelError(f"the tokenizer has no token {token!r}; add it as a special token")
        if id_ in self._encode([token])[0]:
            raise ModelError(
                f"the tokenizer makes the control token {token!r} out of ordinary text; register it as "
                "a special token, so that text can be told from control"
            )
        return id_

    def _spellable(self, text: str, unknown: int) -> str:
        letters = sorted(set(text))
        missing = {a for a, ids in zip(letters, self._encode(letters), strict=True) if unknown in ids}
        for letter in sorted(missing - self._reported):
            log.warning("the tokenizer cannot spell U+%04X; it is written as U+FFFD", ord(letter))
        self._reported |= missing
        return text.translate({ord(letter): REPLACEMENT for letter in missing})

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        # A conversation is cut by a declared policy, never in here; `verbose` would warn of long texts.
        options = {"padding": False, "truncation": False, "return_attention_mask": False, "verbose": False}
        encoding = self._tokenizer(texts, add_special_tokens=False, split_special_tokens=True, **options)
        return encoding["input_ids"]
