"""`toolkit-data stats`: what is in files of rows, in numbers."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.base.console import console, new_table
from posttrain.base.text import on_one_line
from posttrain.conversation.messages import Conversation, Message
from posttrain.data.overlap import duplicates
from posttrain.synthesis.cleaning import PlacedRow, read_rows
from posttrain.synthesis.lengths import Lengths

_PARTS = ("prompt", "answer", "chosen", "rejected")
_CONFIGS = (".yaml", ".yml")
Count = Callable[[str], int]


@dataclass(frozen=True)
class FileStats:
    """The numbers of a file.

    Attributes:
        columns: how many rows have each column.
        prompt_copies, row_copies: rows whose prompt, or whose prompt and answers, are equal to an earlier row's.
        lengths: by unit (`characters`, `tokens`) and part (`prompt`, `answer`, `chosen`, `rejected`).
        chosen_is_longer: the share of pairs whose chosen answer has more characters; None if there are no pairs.
    """

    rows: int
    columns: Counter[str]
    turns: Lengths
    prompt_copies: int
    row_copies: int
    lengths: dict[tuple[str, str], Lengths]
    chosen_is_longer: float | None


def stats_of(rows: Sequence[PlacedRow], tokens: Count | None = None) -> FileStats:
    """The numbers of one or more rows; `tokens` counts the tokens of a text."""
    units: dict[str, Count] = {"characters": len} | ({} if tokens is None else {"tokens": tokens})
    texts = [{"prompt": row.texts.prompt, **row.texts.answers} for row in rows]
    lengths: dict[tuple[str, str], Lengths] = {}
    for unit, count in units.items():
        for part in _PARTS:
            found = Lengths.of([count(each[part]) for each in texts if part in each])
            if found is not None:
                lengths[unit, part] = found
    pairs = [each for each in texts if "chosen" in each]
    longer = sum(len(each["chosen"]) > len(each["rejected"]) for each in pairs)
    turns = Lengths.of([row.texts.turns for row in rows])
    assert turns is not None
    return FileStats(
        rows=len(rows),
        columns=Counter(name for row in rows for name, value in row.row.items() if value is not None),
        turns=turns,
        prompt_copies=len(duplicates(row.texts.prompt for row in rows)),
        row_copies=len(duplicates(row.texts.whole for row in rows)),
        lengths=lengths,
        chosen_is_longer=longer / len(pairs) if pairs else None,
    )


def show_stats(paths: Sequence[Path], tokenizer: Path | None, column: str | None = None) -> None:
    """Print the numbers of files.

    Args:
        tokenizer: a tokenizer.json file, or the config of a training, to count tokens too.
        column: take the text in this column for the prompt.

    Raises:
        ConfigError, ModelError: the tokenizer cannot be loaded.
        DataError: a file cannot be read.
    """
    count = None if tokenizer is None else token_count(tokenizer)
    found = {str(path): stats_of(list(read_rows(path, column)), count) for path in paths}
    numbers = ("rows", "turns", "most", "same prompt", "same row", "chosen longer")
    rows = new_table("Rows", "file", *numbers)
    lengths = new_table("Lengths", "file", "part", "unit", "mean", "p50", "p95", "max", words=("part", "unit"))
    for path, each in found.items():
        counts = (each.rows, each.turns.p50, each.turns.max, each.prompt_copies, each.row_copies)
        longer = "" if each.chosen_is_longer is None else f"{each.chosen_is_longer:.0%}"
        rows.add_row(path, *(f"{number:,}" for number in counts), longer)
        for (unit, part), length in each.lengths.items():
            lengths.add_row(path, part, unit, *length.shown)
    for path, each in found.items():
        columns = ", ".join(f"{on_one_line(name)} ({number:,})" for name, number in each.columns.items())
        console.print(f"{path} has the columns {columns}")
    for table in (rows, lengths):
        console.print(table, soft_wrap=False)


def token_count(path: Path) -> Count:
    """What counts the tokens of a text, without those that a chat template adds.

    Args:
        path: a tokenizer.json file, or the config of a training, whose model's tokenizer is loaded.

    Raises:
        ConfigError, ModelError: it cannot be loaded.
    """
    if path.suffix.lower() not in _CONFIGS:
        from posttrain.dataserver.data.prompt_length import TokenCounter

        counter = TokenCounter(path)
        return lambda text: counter.count(Conversation((Message("user", text),)))
    from posttrain.base.extras import require_extra
    from posttrain.inference.config import load_inference_config
    from posttrain.inference.load import load_text

    config = load_inference_config(path).of_model(None)
    require_extra("train", "--tokenizer with a config")
    encode = load_text(config.model, config.chat).tokenizer.encode
    return lambda text: len(encode(text, add_special_tokens=False))
