"""Config of the data sets of preference training, and of the stages that mix them."""

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from posttrain.config.sections.datasets import (
    ColumnName,
    ColumnsConfig,
    DataFileConfig,
    DatasetConfig,
    DistinctColumns,
    HeldOutConfig,
)
from posttrain.config.strict import StrictModel
from posttrain.config.values import LocalOrNamed

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
        return {"": DatasetConfig(path=self.path, split=self.split, format=self.format)}


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
        return {"": DatasetConfig(path=self.path, split=self.split, format=self.format)}


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
