"""Rows that a program makes when they are asked for."""

import json
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from posttrain.dataserver.config.datasets import ReasoningGymDataset
from posttrain.dataserver.data.procedural import ProceduralItems
from posttrain.dataserver.data.rows import Row, json_digest, row_digest, row_number


class ProceduralRows:
    """The items of one task of reasoning-gym."""

    def __init__(self, config: ReasoningGymDataset, seed: int) -> None:
        """Raises ConfigError where there is no such task, or it refuses its parameters."""
        self._items = ProceduralItems(config.task, seed, config.params, config.rows)
        self.digest = json_digest([config.task, seed, config.params, config.rows, version("reasoning-gym")])
        self.faults: list[str] = []
        self.too_long = 0
        self._task = config.task
        self._cached = lru_cache(maxsize=4096)(self._make)

    def __len__(self) -> int:
        return len(self._items)

    def read(self, index: int) -> Row:
        """Item number `index`; the newest ones made are remembered."""
        return self._cached(index)

    def key(self, index: int) -> str:
        """The number of the item, as text."""
        return str(index)

    def find(self, key: str) -> int | None:
        """The item whose number `key` is."""
        number = row_number(key)
        return number if number is not None and number < len(self) else None

    def place(self, index: int) -> str:
        """The task and the number."""
        return f"{self._task} item {index}"

    def contents(self) -> npt.NDArray[np.uint64]:
        """The items' numbers: no two are taken for the same, since telling would mean making all of them."""
        return np.arange(len(self), dtype=np.uint64)

    def _make(self, index: int) -> Row:
        record: dict[str, Any] = self._items.item(index)
        return Row(index, self.key(index), row_digest(json.dumps(record, sort_keys=True).encode()), record)
