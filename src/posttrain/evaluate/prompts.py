"""Prompts whose answers can be graded: rows of a dataserver's config, or of a file with graders of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from posttrain.base.console import console
from posttrain.base.text import as_url
from posttrain.config.load import load_config
from posttrain.conversation.messages import Conversation, parse_conversation
from posttrain.data.splits import by_rank
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import FileDataset, ReadDataset
from posttrain.dataserver.config.prompts import DataserverPromptsConfig, FilePromptsConfig, RowSplit
from posttrain.dataserver.data.sampling import Slot
from posttrain.dataserver.graders.catalogue import AnyGrader
from posttrain.dataserver.graders.text.completions import column_value
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import Sample
from posttrain.errors import ConfigError
from posttrain.inference.answering.rows import Row


@dataclass(frozen=True)
class GradedPrompts:
    """Prompts, and what grades their answers.

    Attributes:
        rows: their `facts` hold the sample id, by which answers find their gold.
    """

    name: str
    loaded: Loaded
    rows: Sequence[Row]

    @property
    def grading_id(self) -> str:
        """Changes with the graders, their parameters and the data."""
        return self.loaded.meta.config_id

    def clusters(self, column: str) -> dict[str, str]:
        """The value of a column for each prompt, by sample id; ConfigError if a row has none."""
        found = {}
        for row in self.rows:
            sample_id = row.facts["sample_id"]
            value = column_value(self.loaded.samples.target(sample_id).row.record, column)
            if value is None:
                raise ConfigError(f"tasks.{self.name}.cluster: {row.place} has no column {column!r}")
            found[sample_id] = str(value)
        return found


def read_prompts(
    name: str,
    config: DataserverPromptsConfig | FilePromptsConfig,
    count: int | None,
    graders: Mapping[str, AnyGrader],
    *,
    allow_code_execution: bool = False,
    tell: Callable[[str], None] = console.print,
) -> GradedPrompts:
    """Read and check the rows, telling what is read, and choose `count` of them by their content.

    Raises:
        ConfigError, DataError: the rows or their graders are wrong, or there are none.
    """
    if isinstance(config, DataserverPromptsConfig):
        served, chosen, split = load_config(config.config, DataserverConfig), config.dataset, config.split
        if chosen is not None and chosen not in served.datasets:
            there = ", ".join(served.datasets)
            raise ConfigError(f"{name}.dataset: {config.config} has no data set {chosen!r}, only {there}")
    else:
        served, chosen, split = _served(name, config, graders, allow_code_execution), name, "all"
    loaded = Loaded.read(served, tell)
    slots = _slots(loaded, list(served.datasets) if chosen is None else [chosen], split)[:count]
    if not slots:
        raise ConfigError(f"{name}: no rows are held out; set validation_fraction of the data set, or split: all here")
    return GradedPrompts(name, loaded, [_row(name, loaded, place, slot) for place, slot in enumerate(slots)])


def _served(
    name: str, config: FilePromptsConfig, graders: Mapping[str, AnyGrader], allow_code_execution: bool
) -> DataserverConfig:
    """The config of a dataserver that serves just this file."""
    is_local, path = as_url(config.path) is None, Path(config.path)
    given = config.model_dump(include=set(ReadDataset.model_fields), exclude_unset=True)
    dataset = {**given, "path": path.name if is_local else config.path}
    return DataserverConfig(
        data_root=path.parent if is_local else Path(),
        allow_code_execution=allow_code_execution,
        graders=dict(graders),
        datasets={name: FileDataset(**dataset)},
        stages=({"name": "all", "until_step": 1, "mix": {name: 1}},),  # type: ignore[arg-type]
    )


def _slots(loaded: Loaded, names: Sequence[str], split: RowSplit) -> list[Slot]:
    """The rows in an order that depends on their content, so that the first ones are a fair sample."""
    if split == "validation":
        held_out = loaded.sampler.slots(0, 0, loaded.sampler.validation_size, "validation")
        return [slot for slot in held_out if slot.dataset in names]
    rows = [
        (name, index)
        for name in names
        for index in (range(len(loaded.datasets[name])) if split == "all" else loaded.sides[name].train)
    ]
    contents = {name: loaded.datasets[name].contents() for name in names}
    hashes = np.array([contents[name][index] for name, index in rows], dtype=np.uint64)
    return [
        Slot(place, rows[row][0], int(rows[row][1])) for place, row in enumerate(by_rank(hashes, loaded.config.seed))
    ]


def _row(name: str, loaded: Loaded, place: int, slot: Slot) -> Row:
    sample, rows = loaded.samples.sample(slot), loaded.datasets[slot.dataset]
    facts = {"dataset": slot.dataset, "sample_id": sample.sample_id}
    line = int(rows.key(slot.index))
    return Row(name, rows.place(slot.index), line, place, conversation_of(sample), facts=facts)


def conversation_of(sample: Sample) -> Conversation:
    """The prompt of a sample."""
    return parse_conversation([message.model_dump(exclude_none=True) for message in sample.messages], sample.tools)
