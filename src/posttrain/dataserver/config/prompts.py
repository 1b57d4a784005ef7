"""Config of prompts that other commands take: rows of a dataserver's config, or of a file with graders of its own."""

from typing import Literal

from pydantic import field_validator

from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import DataPath
from posttrain.dataserver.config.datasets import ReadDataset

RowSplit = Literal["validation", "train", "all"]


class DataserverPromptsConfig(StrictModel):
    """Rows of a dataserver's config, graded as there."""

    config: ConfigPath
    """The config of `toolkit-rl-dataserver`."""

    dataset: str | None = None
    """One of its data sets; null takes all of them."""

    split: RowSplit = "validation"
    """The held-out rows (in the order in which a run in training evaluates them), those that are trained, or all."""


def form_of_prompts(value: object) -> str:
    """Tag of a section in a union of the two forms: `rows` of a dataserver's config, or of a `file`."""
    has_config = isinstance(value, dict) and "config" in value
    return "rows" if has_config or isinstance(value, DataserverPromptsConfig) else "file"


class FilePromptsConfig(ReadDataset):
    """Rows of a file, with graders of their own; the keys are those of a dataserver's data set."""

    path: DataPath
    """A `.jsonl`, `.json`, `.csv`, `.tsv` (optionally with `.gz`) or `.parquet` file, or its address in a store, such
    as `s3://bucket/prompts.jsonl`."""

    @field_validator("validation_fraction")
    @classmethod
    def _no_rows_are_trained(cls, fraction: float | None) -> float | None:
        if fraction is not None:
            raise ValueError("all rows of the file are asked; for a part of them, give `prompts`")
        return fraction
