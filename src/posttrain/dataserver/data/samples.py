"""Samples by name: a sample id says which row of which data set, and what it held when it was sampled."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from posttrain.conversation.messages import Conversation
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import FileDataset, PromptColumnsConfig
from posttrain.dataserver.data.prompts import gold_answer, last_user_text, parse_prompt, prompt_columns, wire_messages
from posttrain.dataserver.data.rows import Row, Rows
from posttrain.dataserver.data.sampling import Sides, Slot
from posttrain.dataserver.schemas import Sample
from posttrain.errors import DataError

# How rows that a program makes name their parts.
_GENERATED_COLUMNS = PromptColumnsConfig(prompt="question")


@dataclass(frozen=True, slots=True)
class Target:
    """What a completion answers."""

    dataset: str
    row: Row
    is_held_out: bool
    gold: Any
    prompt: str
    """The text of the last user message."""


class Samples:
    """All samples that the data sets hold."""

    def __init__(self, config: DataserverConfig, datasets: Mapping[str, Rows], sides: Mapping[str, Sides]) -> None:
        self._config = config
        self._datasets = datasets
        self._held_out = {name: np.sort(side.validation) for name, side in sides.items()}
        # The completions of a group, and of the ranks of a trainer, name the same few rows.
        self._targets = lru_cache(maxsize=4096)(self._target)

    def sample(self, slot: Slot) -> Sample:
        """What is sent for a slot; never the gold answer."""
        row = self._datasets[slot.dataset].read(slot.index)
        conversation = self._conversation(slot.dataset, row)
        return Sample(
            sample_id=_sample_id(slot.dataset, row),
            dataset=slot.dataset,
            slot=slot.slot,
            messages=wire_messages(conversation),
            tools=list(conversation.tools) or None,
        )

    def sample_id(self, dataset: str, index: int) -> str:
        """The id of a row."""
        return _sample_id(dataset, self._datasets[dataset].read(index))

    def target(self, sample_id: str) -> Target:
        """The row that a sample id names.

        Raises:
            DataError: there is none, or the row is not any more what it was when it was sampled.
        """
        return self._targets(sample_id)

    def gold(self, dataset: str, row: Row) -> Any:
        """The row's right answer; None where the data set has none."""
        config = self._config.datasets[dataset]
        return gold_answer(row.record, config.gold) if isinstance(config, FileDataset) else row.record["answer"]

    def _target(self, sample_id: str) -> Target:
        dataset, key, digest = ["", "", *sample_id.rsplit(":", 2)][-3:]
        rows = self._datasets.get(dataset)
        index = rows.find(key) if rows is not None else None
        if rows is None or index is None:
            raise DataError(f"unknown sample {sample_id[:100]!r}")
        row = rows.read(index)
        if row.digest != digest:
            raise DataError(f"the row of sample {sample_id[:100]!r} has changed since it was sampled")
        return Target(
            dataset, row, self._is_held_out(dataset, index), self.gold(dataset, row), self._prompt(dataset, row)
        )

    def _prompt(self, dataset: str, row: Row) -> str:
        return last_user_text(self._conversation(dataset, row))

    def _conversation(self, dataset: str, row: Row) -> Conversation:
        config = self._config.datasets[dataset]
        columns = config.columns if isinstance(config, FileDataset) else _GENERATED_COLUMNS
        return parse_prompt(row.record, prompt_columns(columns), config.system)

    def _is_held_out(self, dataset: str, index: int) -> bool:
        held_out = self._held_out[dataset]
        place = int(np.searchsorted(held_out, index))
        return place < len(held_out) and int(held_out[place]) == index


def _sample_id(dataset: str, row: Row) -> str:
    return f"{dataset}:{row.key}:{row.digest}"
