"""Make samples (prompts as messages), and look up the rows and gold answers of sample ids.

A sample id identifies a data set, a row of it, and the row's content when it was sampled.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from posttrain.base.text import first_of
from posttrain.config.keys import shown
from posttrain.conversation.messages import Conversation, Message, ToolCall
from posttrain.data.records import Columns, parse_record
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import GoldConfig, PromptColumnsConfig, ReadDataset
from posttrain.dataserver.data.dataset_rows import Row, Rows
from posttrain.dataserver.data.sampling import Sides, Slot
from posttrain.dataserver.data.stray_tags import without_tags
from posttrain.dataserver.graders.text.completions import column_value
from posttrain.dataserver.graders.text.extraction import extract
from posttrain.dataserver.schemas import Sample, WireMessage
from posttrain.errors import DataError

_SHOWN_TASKS = 12
# Column names of generated rows.
_GENERATED_COLUMNS = PromptColumnsConfig(prompt="question")


@dataclass(frozen=True, slots=True)
class Target:
    """The row that a completion answers."""

    dataset: str
    row: Row
    is_held_out: bool
    gold: Any
    prompt: str
    """The text of the last user message."""
    task: str | None = None
    """The row's task; None if its data set has none."""


class Samples:
    """All samples of the data sets."""

    def __init__(self, config: DataserverConfig, datasets: Mapping[str, Rows], sides: Mapping[str, Sides]) -> None:
        self._config = config
        self._datasets = datasets
        self._held_out = {name: np.sort(side.validation) for name, side in sides.items()}
        # The completions of a group, and of a trainer's ranks, refer to the same few rows.
        self._targets = lru_cache(maxsize=4096)(self._target)

    def sample(self, slot: Slot) -> Sample:
        """The sample to send for a slot; it never holds the gold answer."""
        row = self._datasets[slot.dataset].read(slot.index)
        conversation = self._conversation(slot.dataset, row)
        return Sample(
            sample_id=self.sample_id(slot.dataset, slot.index),
            dataset=slot.dataset,
            slot=slot.slot,
            messages=wire_messages(conversation),
            tools=list(conversation.tools) or None,
        )

    def sample_id(self, dataset: str, index: int) -> str:
        """The id of a row."""
        row = self._datasets[dataset].read(index)
        return f"{dataset}:{row.key}:{row.digest}"

    def target(self, sample_id: str) -> Target:
        """The row with that sample id.

        Raises:
            DataError: there is none, or the row has changed since it was sampled.
        """
        return self._targets(sample_id)

    def gold(self, dataset: str, row: Row) -> Any:
        """The row's gold answer; None if the data set has none."""
        config = self._config.datasets[dataset]
        return gold_answer(row.record, config.gold) if isinstance(config, ReadDataset) else row.record["answer"]

    def task(self, dataset: str, row: Row) -> str | None:
        """The row's task; None if the data set has none."""
        config = self._config.datasets[dataset]
        return row_task(row.record, config) if isinstance(config, ReadDataset) else None

    def _target(self, sample_id: str) -> Target:
        dataset, key, digest = ["", "", *sample_id.rsplit(":", 2)][-3:]
        rows = self._datasets.get(dataset)
        index = rows.find(key) if rows is not None else None
        if rows is None or index is None:
            raise DataError(f"unknown sample {sample_id[:100]!r}")
        row = rows.read(index)
        if row.digest != digest:
            raise DataError(f"the row of sample {sample_id[:100]!r} has changed since it was sampled")
        prompt = last_user_text(self._conversation(dataset, row))
        gold, task = self.gold(dataset, row), self.task(dataset, row)
        return Target(dataset, row, self._is_held_out(dataset, index), gold, prompt, task)

    def _conversation(self, dataset: str, row: Row) -> Conversation:
        config = self._config.datasets[dataset]
        columns = config.columns if isinstance(config, ReadDataset) else _GENERATED_COLUMNS
        tags = config.strip_tags if isinstance(config, ReadDataset) else ()
        return parse_prompt(row.record, prompt_columns(columns), config.system, tags)

    def _is_held_out(self, dataset: str, index: int) -> bool:
        held_out = self._held_out[dataset]
        place = int(np.searchsorted(held_out, index))
        return place < len(held_out) and int(held_out[place]) == index


def prompt_columns(columns: PromptColumnsConfig) -> Columns:
    """The columns in the form that the record reader takes."""
    return Columns(**columns.model_dump(), completion=None, weight=None)


def parse_prompt(
    record: Mapping[str, Any], columns: Columns, system: str | None, strip_tags: Collection[str] = ()
) -> Conversation:
    """The conversation up to the turn to generate, with a system message if the row or `system` gives one.

    Args:
        strip_tags: names of tags to remove from the row's own messages.

    Raises:
        DataError: the row has no prompt, or its prompt has no turn to answer.
    """
    conversation, _ = parse_record(record, columns, require_answer=False)
    messages = list(conversation.messages)
    while messages and messages[-1].role == "assistant":
        messages.pop()
    if not messages or messages[-1].role == "system":
        raise DataError("the prompt has no user message")
    conversation = without_tags(Conversation(tuple(messages), conversation.tools), strip_tags)
    if system is None or messages[0].role == "system":
        return conversation
    return replace(conversation, messages=(Message("system", system), *conversation.messages))


def gold_answer(record: Mapping[str, Any], gold: GoldConfig | None) -> Any:
    """The gold answer of a row; None without a `gold` section.

    Raises:
        DataError: the column is missing or null, or `gold.extract` finds nothing in the text.
    """
    if gold is None:
        return None
    value = column_value(record, gold.column)
    if value is None:
        raise DataError(
            f"there is no gold answer: {gold.column!r} is missing or null; set gold.column to the right column, or "
            "gold: null if no grader needs one"
        )
    if not isinstance(value, str):
        return value
    found = extract(value, gold.extract)
    if not found:
        raise DataError(f"there is no gold answer: gold.extract finds nothing in {gold.column!r}")
    return found


def row_task(record: Mapping[str, Any], dataset: ReadDataset) -> str | None:
    """The task of a row; None if the data set has none.

    Raises:
        DataError: the row names none of the data set's tasks.
    """
    if not dataset.tasks:
        return None
    task = column_value(record, dataset.task_column)
    if not isinstance(task, str) or task not in dataset.tasks:
        known = first_of(list(dataset.tasks), _SHOWN_TASKS)
        raise DataError(f"{dataset.task_column!r} must be one of the data set's tasks ({known}), not {shown(task)}")
    return task


def wire_messages(conversation: Conversation) -> list[WireMessage]:
    """The messages in the form in which they are sent."""
    return [
        WireMessage(
            role=message.role,
            content=message.content,
            name=message.name,
            reasoning_content=message.reasoning,
            tool_calls=[_wire_call(call) for call in message.tool_calls] or None,
        )
        for message in conversation.messages
    ]


def last_user_text(conversation: Conversation) -> str:
    """The text of the last user message; empty if there is none."""
    return next((message.content for message in reversed(conversation.messages) if message.role == "user"), "")


def _wire_call(call: ToolCall) -> dict[str, object]:
    return {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
