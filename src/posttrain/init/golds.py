"""Find out how completions can be graded with the gold answers of a file, and read its prompts as a dataserver does."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from posttrain.conversation.messages import Conversation
from posttrain.data.readers.json_lines import Line
from posttrain.data.records import Columns
from posttrain.data.sources import Attempt, open_data, open_rows, values
from posttrain.dataserver.config.datasets import GoldConfig, PromptColumnsConfig
from posttrain.dataserver.data.samples import gold_answer, parse_prompt, prompt_columns
from posttrain.dataserver.graders.text.numbers import gold_number
from posttrain.errors import DataError
from posttrain.init.columns import Guess

# What gold answers follow in known data sets, such as GSM8K.
_MARKS = ("####", "Answer:")
_ONLY_THE_ANSWER = "Write only the answer, nothing else."


@dataclass(frozen=True)
class Gold:
    """The gold answers of a file.

    Attributes:
        after: the mark that each of them follows; None if the column holds nothing else.
        is_number: whether all are numbers.
    """

    column: str
    after: str | None
    is_number: bool

    @cached_property
    def config(self) -> GoldConfig:
        """Its section in the config of a dataserver."""
        extract = {} if self.after is None else {"extract": {"after": self.after}}
        return GoldConfig.model_validate({"column": self.column, **extract})

    @property
    def system(self) -> str | None:
        """A system message that makes answers comparable: of a text only the whole is compared, of numbers the last."""
        return None if self.is_number else _ONLY_THE_ANSWER


def find_gold(path: Path, column: str) -> Gold:
    """Look at the gold answers of all rows that have one; DataError if the file cannot be read."""
    return judge(column, (row[column] for row in _rows(path) if row.get(column) is not None))


def judge(column: str, golds: Iterable[Any]) -> Gold:
    """What all gold answers have in common."""
    marks, numbers, count = list(_MARKS), {None, *_MARKS}, 0
    for count, gold in enumerate(golds, start=1):  # noqa: B007
        marks = [mark for mark in marks if isinstance(gold, str) and mark in gold]
        numbers = {after for after in numbers if _is_number(gold, after)}
    after = marks[0] if marks and count else None
    return Gold(column, after, after in numbers and count > 0)


def prompts(path: Path, guess: Guess, gold: Gold) -> Iterator[Attempt[Conversation]]:
    """Each row's prompt, with the system message that the dataserver adds; a row without a gold answer is a DataError.

    Raises:
        DataError: the file cannot be read.
    """
    columns = prompt_columns(PromptColumnsConfig(**guess.read))
    source = open_data(path, columns, every_column=True)
    for line in source.lines():
        yield Attempt(source.place(line.number), line.number, partial(_prompt, line, columns, gold))


def _prompt(line: Line, columns: Columns, gold: Gold) -> Conversation:
    row = values(line)
    conversation = parse_prompt(row, columns, gold.system)
    gold_answer(row, gold.config)
    return conversation


def _rows(path: Path) -> Iterator[Mapping[str, Any]]:
    return (line.value for line in open_rows(path, {}, every_column=True).lines() if line.value is not None)


def _is_number(gold: Any, after: str | None) -> bool:
    """Whether nothing but one number is there, as in `1,234` or `$5`."""
    part = gold.rpartition(after)[2] if after is not None and isinstance(gold, str) else gold
    try:
        gold_number(part)
    except DataError:
        return False
    return not any(letter.isalpha() for letter in str(part))
