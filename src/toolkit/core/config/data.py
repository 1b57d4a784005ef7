"""Data sets, their columns, the validation split, and the curriculum's stages."""

from typing import Literal

from pydantic import Field, model_validator

from toolkit.core.config.references import LocalOrNamed
from toolkit.core.config.strict import StrictModel


class ColumnsConfig(StrictModel):
    """What the columns of a data set are called; a column that is not there is passed over."""

    messages: str = "messages"
    """Whole conversations: a list of `{role, content}`."""

    prompt: str = "prompt"
    """The user's text (or a list of messages), where there is no messages column."""

    completion: str = "completion"
    """The answer that belongs to the prompt."""

    system: str | None = None
    """A system message of its own for each row."""

    tools: str = "tools"
    """Tool definitions for the conversation, as a list of JSON objects."""

    weight: str = "weight"
    """A factor on the row's loss; rows without it count 1."""


class DatasetConfig(StrictModel):
    """One source of conversations."""

    path: LocalOrNamed
    """A `.jsonl`, `.json`, `.parquet` or `.csv` file, or a Hugging Face data set id."""

    split: str = "train"
    """Split of a Hugging Face data set."""

    columns: ColumnsConfig = ColumnsConfig()
    """Names of the columns."""


class ValidationConfig(StrictModel):
    """Held-out rows on which the loss is measured during training."""

    dataset: DatasetConfig | None = None
    """A data set of its own."""

    fraction: float | None = Field(default=None, gt=0, lt=1)
    """Or: this share of every training data set, split off by content and seed, the same in every run."""

    every: int = Field(default=50, ge=1)
    """Optimizer steps between two evaluations."""

    at_start: bool = True
    """Measure once before the first step too, to see what training changes."""

    patience: int | None = Field(default=None, ge=1)
    """Stop after so many evaluations in a row without a better loss; null never stops early."""

    min_improvement: float = Field(default=0.0, ge=0)
    """How much lower the loss must be to count as better."""

    @model_validator(mode="after")
    def _one_source(self) -> "ValidationConfig":
        if (self.dataset is None) == (self.fraction is None):
            raise ValueError("give one of `dataset` (a file of its own) and `fraction` (a share of the data)")
        return self


class StageConfig(StrictModel):
    """One stage of the curriculum."""

    name: str = Field(min_length=1)
    """Shown in the log, the progress bar and the plots."""

    until_step: int = Field(ge=1)
    """The optimizer step at which the stage ends, counted from the start of the run."""

    mix: dict[str, float] = Field(min_length=1)
    """Data set names and their weights; a weight is a share of the rows."""


OnBadRecord = Literal["error", "skip"]
