"""Config of the data sets of preference training, and of the stages that mix them."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from posttrain.config.sections.datasets import (
    ColumnName,
    ColumnsConfig,
    DataFileConfig,
    DatasetConfig,
    DistinctColumns,
    HeldOutConfig,
    require_something_drawn,
)
from posttrain.config.sections.training import whole_steps
from posttrain.config.strict import StrictModel
from posttrain.config.values import LocalOrNamed, OneLine
from posttrain.data.curriculum.curriculum import Stage
from posttrain.errors import ConfigError

_MOST_STEPS = 2**62

OnUselessPair = Literal["drop", "error"]


class PairColumnsConfig(DistinctColumns):
    """Names of the columns of a data set of pairs; columns that do not exist are ignored."""

    prompt: ColumnName = "prompt"
    """The user's text, or a list of messages. Without it, both answers are whole conversations and their common
    beginning is the prompt."""

    chosen: ColumnName = "chosen"
    """The preferred answer: text, a list of messages that follow the prompt, or the whole conversation."""

    rejected: ColumnName = "rejected"
    """The other answer, in any of these forms."""

    system: ColumnName | None = None
    """System message of each row."""

    tools: ColumnName | None = "tools"
    """Tool definitions for the conversation, as a list of JSON objects; null ignores them."""

    weight: ColumnName | None = "weight"
    """Factor on the pair's loss, above 0; rows without it count as 1, and null ignores the column."""


class LabelledColumnsConfig(ColumnsConfig):
    """Names of the columns of a data set of labelled answers."""

    label: ColumnName = "label"
    """Whether the answer is good: true or false, 1 or 0."""


class _Sampled(StrictModel):
    """Fields common to all kinds of data sets."""

    labelled: ClassVar[bool] = False
    """Whether a row is one labelled answer instead of a pair."""

    n_samples: Annotated[int, Field(ge=1)] | None = None
    """Use this many of the usable rows, drawn with the seed before rows that are too long are dropped, so fewer may
    remain; null uses all."""


class PairsDataset(_Sampled, DataFileConfig):
    """Pairs in one file: each row has a prompt, a chosen and a rejected answer."""

    type: Literal["pairs"] = "pairs"
    """Pairs in one file; the default if `type` is omitted."""

    columns: PairColumnsConfig = PairColumnsConfig()
    """Names of the columns."""

    def sources(self) -> dict[str, DatasetConfig]:
        """The files, by their keys relative to this section."""
        return {"": DatasetConfig(path=self.path, split=self.split)}


class TwoFilesDataset(_Sampled):
    """Pairs in two files: row n of one is preferred to row n of the other."""

    type: Literal["two_files"]
    """Pairs in two files; the default if `type` is omitted and `accepted` or `rejected` is given."""

    accepted: LocalOrNamed | DatasetConfig
    """Conversations with the preferred answers, as for SFT: a path, or a section with `path`, `split` and `columns`."""

    rejected: LocalOrNamed | DatasetConfig
    """The same conversations with the other answers, in the same order."""

    def files(self) -> tuple[DatasetConfig, DatasetConfig]:
        """The accepted and the rejected file."""
        one, other = (DatasetConfig(path=f) if isinstance(f, str) else f for f in (self.accepted, self.rejected))
        return one, other

    def sources(self) -> dict[str, DatasetConfig]:
        """The files, by their keys relative to this section."""
        accepted, rejected = self.files()
        return {".accepted": accepted, ".rejected": rejected}


class LabelledAnswers(_Sampled, DataFileConfig):
    """Answers in one file, each labelled as good or bad; for KTO."""

    labelled: ClassVar[bool] = True

    type: Literal["labelled"]
    """Individually labelled answers, for kto; the default if `type` is omitted and `columns` has `label` or
    `completion`."""

    columns: LabelledColumnsConfig = LabelledColumnsConfig()
    """Names of the columns. In whole conversations, the label applies to the last answer."""

    def sources(self) -> dict[str, DatasetConfig]:
        """The files, by their keys relative to this section."""
        return {"": DatasetConfig(path=self.path, split=self.split)}


def _kind_by_keys(value: object) -> object:
    """Add the type of a data set that names none, inferred from keys that only one type has."""
    if not isinstance(value, dict) or "type" in value:
        return value
    columns = value.get("columns")
    if "accepted" in value or "rejected" in value:
        kind = "two_files"
    elif isinstance(columns, dict) and ("label" in columns or "completion" in columns):
        kind = "labelled"
    else:
        kind = "pairs"
    return {"type": kind, **value}


AnyPreferences = Annotated[
    Annotated[PairsDataset | TwoFilesDataset | LabelledAnswers, Field(discriminator="type")],
    BeforeValidator(_kind_by_keys),
]
"""A data set: pairs in one file or in two, or labelled answers."""


class PreferenceValidationConfig(HeldOutConfig[AnyPreferences]):
    """Held-out rows on which loss and accuracy are measured during training."""


class PreferenceStageConfig(StrictModel):
    """One stage of the curriculum. It ends at `until_step`, or lasts for `epochs`.

    With `epochs` it lasts ⌈epochs × rows / rows_per_step⌉ steps, where rows is the number of rows in all data sets of
    its mix together, after the validation rows are split off. Without `mix` it draws from every data set in proportion
    to its rows, so that each is used `epochs` times.
    """

    name: OneLine = Field(min_length=1)
    """Name shown in the log, the progress bar and the plots."""

    until_step: Annotated[int, Field(ge=1)] | None = None
    """Optimizer step at which the stage ends, counted from the start of the run."""

    epochs: Annotated[float, Field(gt=0)] | None = None
    """Or: how many times to go through the rows of the stage's data sets, taken together; steps are rounded up."""

    mix: Annotated[dict[str, Annotated[float, Field(ge=0)]], Field(min_length=1)] | None = None
    """Weight of each data set, by name: the stage's rows are drawn in these proportions. Null, only with `epochs`, uses
    every data set in proportion to its rows."""

    @field_validator("mix")
    @classmethod
    def _something_is_drawn(cls, mix: dict[str, float] | None) -> dict[str, float] | None:
        return mix if mix is None else require_something_drawn(mix)

    @model_validator(mode="after")
    def _one_end(self) -> "PreferenceStageConfig":
        if (self.until_step is None) == (self.epochs is None):
            raise ValueError("give exactly one of `until_step` (a step) and `epochs` (passes over the data)")
        if self.mix is None and self.epochs is None:
            raise ValueError("mix is missing; only a stage with `epochs` may omit it")
        return self

    def resolved(self, start: int, sizes: Mapping[str, int], rows_per_step: int) -> Stage:
        """The curriculum's form of the stage, beginning at step `start`; `sizes` are the row counts of all data sets.

        A data set that is in the mix but not in `sizes` counts as 0 rows here; the curriculum rejects it.
        """
        mix = self.mix if self.mix is not None else {name: float(size) for name, size in sizes.items()}
        if self.until_step is not None:
            return Stage(self.name, self.until_step, mix)
        assert self.epochs is not None
        rows = sum(sizes.get(name, 0) for name, weight in mix.items() if weight)
        if self.epochs * rows / rows_per_step > _MOST_STEPS:
            raise ConfigError(f"stage {self.name!r}: {self.epochs:g} epochs are more steps than can be counted")
        steps = whole_steps(self.epochs, rows / rows_per_step)
        return Stage(self.name, start + max(1, steps), mix)


def resolved_stages(
    stages: tuple[PreferenceStageConfig, ...], sizes: Mapping[str, int], rows_per_step: int
) -> list[Stage]:
    """All stages with their end steps, once the rows of every data set are counted."""
    resolved: list[Stage] = []
    for stage in stages:
        start = resolved[-1].until_step if resolved else 0
        resolved.append(stage.resolved(start, sizes, rows_per_step))
    return resolved
