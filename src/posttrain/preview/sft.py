"""Rows of supervised fine-tuning for a preview: as they are kept, and as they were before truncation."""

from collections.abc import Collection, Iterator
from pathlib import PurePath
from typing import Any

import numpy as np

from posttrain.base.text import counted
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.masks import TokenRow
from posttrain.conversation.truncation import Outcome, truncate
from posttrain.data.readers.open import place_in
from posttrain.data.sources import open_source
from posttrain.data.tokenized import TokenizedDataset
from posttrain.errors import DataError
from posttrain.models.tokens import training_template
from posttrain.preview.rows import Shown, counts, in_batches, require_unchanged, wanted
from posttrain.preview.tokens import Side, toned

_LEFT_OUT = {
    Outcome.DROPPED_TOO_LONG: "too long",
    Outcome.NOTHING_TRAINED: "nothing to train",
}


class ConversationRows:
    """The rows of one data set of conversations; see `PreparedRows`."""

    def __init__(self, name: str, config: DatasetConfig, chat: ChatConfig, tokenizer: Any, rows: TokenizedDataset):
        self.name = name
        self.path = config.path
        self.lengths, self.trained, self.lines = rows.lengths(), rows.trained_counts(), rows.lines
        self._source = open_source(config)
        self._chat, self._tokenizer, self._rows = chat, tokenizer, rows
        self._encoder = conversation_encoder(chat, tokenizer, training_template(chat, tokenizer))

    def place(self, line: int) -> str:
        """The place of a line, for people."""
        return f"{self.name}: {PurePath(place_in(self.path, line)).name}"

    def lost(self) -> dict[int, int]:
        """How many tokens truncation took from each row that it cut."""
        if not (self._rows.ledger.cut_left or self._rows.ledger.cut_right):
            return {}
        # What was cut has just this length; it is read again to see how much longer it was.
        full = {int(self.lines[row]): int(row) for row in np.flatnonzero(self.lengths == self._chat.max_length)}
        longer = {full[line]: len(whole.ids) - self._chat.max_length for line, whole in self._wholes(full)}
        return {row: tokens for row, tokens in longer.items() if tokens}

    def show(self, row: int, why: str) -> Shown:
        """A row, with the tokens that were cut off."""
        line = int(self.lines[row])
        ids, trained = self._rows.row(row)
        whole = self._whole(line)
        cut_left = self._chat.truncation == "left"
        require_unchanged(whole.ids, ids, self.place(line), cut_left=cut_left)
        tokens = toned(self._tokenizer, whole.ids, trained.tolist(), cut_left=cut_left)
        weight = float(self._rows.weights[row])
        facts = [*counts(len(ids), int(trained.sum()), len(whole.ids)), *[f"weight {weight:g}"] * (weight != 1)]
        return Shown(self.place(line), why, [Side("", tokens)], facts)

    def show_left_out(self, line: int, why: str) -> Shown:
        """A record that is not trained, with the reason; DataError if there is none, or it cannot be used."""
        whole = self._whole(line)
        _, outcome = truncate(whole, self._chat.max_length, self._chat.truncation)
        reason = _LEFT_OUT.get(outcome, "held out for validation")
        tokens = toned(self._tokenizer, whole.ids, whole.trained, cut_left=False, dropped=True)
        facts = [f"not trained: {reason}", counted(len(whole.ids), "token")]
        return Shown(self.place(line), why, [Side("", tokens)], facts)

    def _whole(self, line: int) -> TokenRow:
        for _, whole in self._wholes({line}):
            return whole
        raise DataError(f"{self.place(line)}: there is no such record")

    def _wholes(self, lines: Collection[int]) -> Iterator[tuple[int, TokenRow]]:
        """The rows of some lines before truncation."""
        attempts = self._source.examples(require_answer=True).attempts()
        for batch in in_batches(wanted(attempts, lines)):
            rows = self._encoder.rows([conversation for _, (conversation, _) in batch])
            yield from zip((line for line, _ in batch), rows, strict=True)
