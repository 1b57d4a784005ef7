"""Guess from its columns what a data file is for, and what each column means."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from posttrain.data.records import columns_found
from posttrain.data.sources import open_rows, values
from posttrain.errors import DataError

Task = Literal["sft", "dpo", "grpo"]
TASKS: tuple[Task, ...] = ("sft", "dpo", "grpo")

_LOOKED_AT = 100

# By meaning, the names that data sets use; the first one found counts.
_NAMES: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversation", "conversations", "chat", "dialogue"),
    "prompt": ("prompt", "question", "instruction", "query", "problem", "input", "user"),
    "completion": ("completion", "answer", "response", "output", "solution", "target", "assistant"),
    "chosen": ("chosen", "preferred", "accepted", "winner"),
    "rejected": ("rejected", "dispreferred", "loser"),
    "system": ("system", "system_prompt"),
    "gold": ("gold", "final_answer", "answer", "label", "target", "solution", "completion", "output", "response"),
}
# Columns that a config finds by itself under these names.
_USUAL = {"messages", "prompt", "completion", "chosen", "rejected"}
_OF_TASK: dict[Task, tuple[tuple[str, ...], ...]] = {
    "dpo": (("prompt", "chosen", "rejected"), ("chosen", "rejected")),
    "sft": (("messages",), ("prompt", "completion")),
    "grpo": (("prompt", "gold"), ("messages", "gold")),
}


@dataclass(frozen=True)
class Guess:
    """What a file is for.

    Attributes:
        columns: the column of each meaning.
        unused: the other columns.
    """

    task: Task
    columns: Mapping[str, str]
    unused: Sequence[str] = ()

    @property
    def read(self) -> dict[str, str]:
        """The columns of the conversations, without the gold answer."""
        return {meaning: name for meaning, name in self.columns.items() if meaning != "gold"}

    @property
    def renamed(self) -> dict[str, str]:
        """The columns that a config has to name."""
        return {meaning: name for meaning, name in self.read.items() if meaning != name or meaning not in _USUAL}


def guess_columns(path: Path, task: Task | None) -> Guess:
    """The task that a file fits, and its columns; with `task`, its columns for that task.

    Raises:
        DataError: the file cannot be read, is empty, or has no columns for the task.
    """
    rows = []
    source = open_rows(path, {}, every_column=True)
    for line in islice(source.lines(), _LOOKED_AT):
        try:
            rows.append(values(line))
        except DataError as error:
            if not rows:
                raise DataError(f"{source.place(line.number)}: {error}") from None
    if not rows:
        raise DataError(f"{path} holds no records")
    # A column may be missing in some rows, or null in the first ones.
    there = list(dict.fromkeys(name for row in rows for name, value in row.items() if value is not None))
    for each in _OF_TASK if task is None else (task,):
        for meanings in _OF_TASK[each]:
            found = _find(meanings, there)
            if found is not None:
                columns = {**found, **_system(there, found.values())}
                return Guess(each, columns, [name for name in there if name not in columns.values()])
    wanted = " or ".join(" and ".join(meanings) for meanings in _OF_TASK[task or "sft"])
    raise DataError(
        f"{path}: cannot tell which columns hold {wanted} for {task or 'any task'}; it has {columns_found(rows[0])}; "
        "rename them, or write the config by hand (docs/data-formats.md)"
    )


def _find(meanings: Sequence[str], there: Collection[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for meaning in meanings:
        name = next((name for name in _NAMES[meaning] if name in there and name not in found.values()), None)
        if name is None:
            return None
        found[meaning] = name
    return found


def _system(there: Collection[str], used: Collection[str]) -> dict[str, str]:
    names = [name for name in _NAMES["system"] if name in there and name not in used]
    return {"system": names[0]} if names else {}
