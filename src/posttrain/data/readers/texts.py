"""Open the data sets of toolkit-sft, conversations or texts without turns, with light imports alone."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from posttrain.config.sections.datasets import AnyTrainingData, OnBadRecord, TextsConfig
from posttrain.data.readers.json_lines import Line
from posttrain.data.records import columns_found
from posttrain.data.sources import Attempt, Examples, Parsed, open_rows, open_source, require_usable_start, values
from posttrain.errors import DataError


def open_training_data(config: AnyTrainingData) -> Examples[Parsed] | Examples[str]:
    """The conversations or texts that a config names; DataError if there are none to read."""
    return open_texts(config) if isinstance(config, TextsConfig) else open_source(config).examples(require_answer=True)


def require_readable(sources: Iterable[AnyTrainingData], on_bad_record: OnBadRecord) -> None:
    """Raise DataError if of the first records of a data set none can be used; see `require_usable_start`."""
    require_usable_start([([each.path], partial(open_training_data, each)) for each in sources], on_bad_record)


def open_texts(config: TextsConfig) -> Examples[str]:
    """The texts that a config names; DataError if there are none to read."""
    source = open_rows(config.path, {"text": config.column}, config.split, "columns", prose=True)

    def attempts() -> Iterator[Attempt[str]]:
        for line in source.lines():
            yield Attempt(source.place(line.number), line.number, partial(_text, line, config.column))

    return Examples(source.name, source.digest, attempts, lambda: None, source.note)


def _text(line: Line, column: str) -> str:
    row: Mapping[str, Any] = values(line)
    text = row.get(column)
    if not isinstance(text, str):
        raise DataError(f"needs a text in column {column!r}, but has {columns_found(row)}")
    if not text.strip():
        raise DataError(f"the text in column {column!r} is blank")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise DataError(f"the text in column {column!r} holds a lone surrogate")
    return text
