"""Rows of preference training for a preview: pairs side by side, or labelled answers."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from posttrain.base.text import counted
from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.masks import TokenRow
from posttrain.data.readers.open import place_in
from posttrain.data.tokenized import TokenizedDataset
from posttrain.dpo.config.data import AnyPreferences
from posttrain.dpo.datasets import PairedDataset, PreferenceDataset
from posttrain.dpo.preferences import Preference, open_preferences
from posttrain.dpo.truncation import Fate, truncate_answers
from posttrain.errors import DataError
from posttrain.models.tokens import training_template
from posttrain.preview.rows import Numbers, Shown, counts, in_batches, require_unchanged, wanted
from posttrain.preview.tokens import Side, toned

_KEPT = (Fate.KEPT, Fate.CUT_LEFT, Fate.CUT_RIGHT)


class _Whole(NamedTuple):
    """A record before truncation: the tokens of its prompt, and the row of each answer, by its name."""

    prompt: int
    answers: dict[str, TokenRow]


class PreferenceRows:
    """The rows of one data set of pairs or of labelled answers; see `PreparedRows`."""

    def __init__(self, name: str, config: AnyPreferences, chat: ChatConfig, tokenizer: Any, rows: PreferenceDataset):
        self.name = name
        self.path = next(iter(config.sources().values())).path
        self._source = open_preferences(config)
        self._chat, self._tokenizer = chat, tokenizer
        self._encoder = conversation_encoder(chat, tokenizer, training_template(chat, tokenizer))
        self._ledger, self._weights = rows.ledger, rows.weights
        self._sides: Sequence[TokenizedDataset]
        self._names: list[Sequence[str]]
        if isinstance(rows, PairedDataset):
            self._sides = [rows.chosen, rows.rejected]
            self._names = [("chosen", "rejected")] * len(rows)
        else:
            self._sides = [rows.completions]
            self._names = [("chosen",) if good else ("rejected",) for good in rows.desirable]
        self.lengths: Numbers = sum(side.lengths() for side in self._sides) + np.zeros(len(rows), np.int64)
        self.trained: Numbers = sum(side.trained_counts() for side in self._sides) + np.zeros(len(rows), np.int64)
        self.lines = self._sides[0].lines

    def place(self, line: int) -> str:
        """The place of a line, for people."""
        return f"{self.name}: {PurePath(place_in(self.path, line)).name}"

    def lost(self) -> dict[int, int]:
        """How many tokens truncation took from each row that it cut, from all sides together."""
        if not (self._ledger.cut_left or self._ledger.cut_right):
            return {}
        is_full = np.any([side.lengths() == self._chat.max_length for side in self._sides], axis=0)
        full: dict[int, list[int]] = {}
        for row in np.flatnonzero(is_full):
            full.setdefault(int(self.lines[row]), []).append(int(row))
        found = {}
        for line, whole in self._wholes(full):
            for row in full[line]:
                before = sum(len(whole.answers[name].ids) for name in self._names[row])
                found[row] = before - int(self.lengths[row])
        return {row: tokens for row, tokens in found.items() if tokens}

    def show(self, row: int, why: str) -> Shown:
        """A row, with the tokens that were cut off; the prompt of a pair only once."""
        line = int(self.lines[row])
        whole, cut_left = self._whole(line), self._chat.truncation == "left"
        sides = []
        for name, side in zip(self._names[row], self._sides, strict=True):
            (ids, trained), before = side.row(row), whole.answers[name]
            require_unchanged(before.ids, ids, self.place(line), cut_left=cut_left)
            tokens = toned(self._tokenizer, before.ids, trained.tolist(), cut_left=cut_left)
            sides.append(Side(name, tokens, ", ".join(counts(len(ids), int(trained.sum()), len(before.ids)))))
        weight = float(self._weights[row])
        return self._shown(line, why, sides, whole.prompt, [f"weight {weight:g}"] * (weight != 1))

    def show_left_out(self, line: int, why: str) -> Shown:
        """A record that is not trained, with the reason; DataError if there is none, or it cannot be used."""
        whole = self._whole(line)
        answers = list(whole.answers.values())
        _, fate = truncate_answers(whole.prompt, answers, self._chat.max_length, self._chat.truncation)
        if len(answers) == 2 and answers[0].ids == answers[1].ids:
            fate = Fate.SAME
        reason = "held out for validation, or not drawn by n_samples" if fate in _KEPT else str(fate)
        sides = [
            Side(
                name,
                toned(self._tokenizer, row.ids, row.trained, cut_left=False, dropped=True),
                counted(len(row.ids), "token"),
            )
            for name, row in whole.answers.items()
        ]
        return self._shown(line, why, sides, whole.prompt, [f"not trained: {reason}"])

    def _shown(self, line: int, why: str, sides: list[Side], prompt: int, facts: list[str]) -> Shown:
        shared = Side("prompt", sides[0].tokens[:prompt], counted(prompt, "token"))
        answers = [Side(side.name, side.tokens[prompt:], side.remark) for side in sides]
        return Shown(self.place(line), why, answers, facts, shared)

    def _whole(self, line: int) -> _Whole:
        for _, whole in self._wholes({line}):
            return whole
        raise DataError(f"{self.place(line)}: there is no such record")

    def _wholes(self, lines: Collection[int]) -> Iterator[tuple[int, _Whole]]:
        """The records of some lines before truncation."""
        for batch in in_batches(wanted(self._source.attempts(), lines)):
            prompts = self._encoder.prompts([record.prompt for _, record in batch])
            for (line, record), prompt in zip(batch, prompts, strict=True):
                named = _named(record)
                rows = self._encoder.rows(list(named.values()))
                yield line, _Whole(len(prompt), dict(zip(named, rows, strict=True)))


def _named(record: Preference) -> dict[str, Any]:
    sides = {"chosen": record.chosen, "rejected": record.rejected}
    return {name: conversation for name, conversation in sides.items() if conversation is not None}
