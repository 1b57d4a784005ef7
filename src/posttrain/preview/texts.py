"""The rows of a data set of texts in a preview."""

from pathlib import PurePath
from typing import Any

from posttrain.base.text import counted
from posttrain.config.sections.datasets import TextsConfig
from posttrain.data.readers.open import place_in
from posttrain.data.readers.texts import open_texts
from posttrain.data.tokenized import TokenizedDataset
from posttrain.errors import DataError
from posttrain.preview.rows import Shown, counts, wanted
from posttrain.preview.tokens import Side, toned


class TextRows:
    """The rows of one data set of texts, none of which is cut; see `PreparedRows`."""

    def __init__(self, name: str, config: TextsConfig, tokenizer: Any, rows: TokenizedDataset) -> None:
        self.name = name
        self.path = config.path
        self.lengths, self.trained, self.lines = rows.lengths(), rows.trained_counts(), rows.lines
        self._config, self._tokenizer, self._rows = config, tokenizer, rows

    def place(self, line: int) -> str:
        """The place of a line, for people."""
        return f"{self.name}: {PurePath(place_in(self.path, line)).name}"

    def lost(self) -> dict[int, int]:
        """Nothing: a text that is too long for one row has several."""
        return {}

    def show(self, row: int, why: str) -> Shown:
        """A row: a part of a text."""
        ids, trained = self._rows.row(row)
        tokens = toned(self._tokenizer, ids.tolist(), trained.tolist(), cut_left=False)
        facts = counts(len(ids), int(trained.sum()), len(ids))
        return Shown(self.place(int(self.lines[row])), why, [Side("", tokens)], facts)

    def show_left_out(self, line: int, why: str) -> Shown:
        """A text that is held out; DataError if there is none on this line, or it cannot be used."""
        for _, text in wanted(open_texts(self._config).attempts(), {line}):
            facts = ["not trained: held out for validation", counted(len(text), "character")]
            return Shown(self.place(line), why, [], facts, texts={"text": text})
        raise DataError(f"{self.place(line)}: there is no such record")
