"""Config sections for data sets, their columns, the validation split, and the curriculum's stages."""

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, field_validator, model_validator

from posttrain.config.sections.training import whole_steps
from posttrain.config.strict import StrictModel, type_by_default
from posttrain.config.text_template import template_fields
from posttrain.config.values import LocalOrNamed, OneLine
from posttrain.errors import ConfigError

Format = Literal["auto", "columns", "sharegpt", "alpaca", "alpaca_prompt", "openai", "transcripts"]

CONVERSATION_COLUMNS = frozenset({"messages", "prompt", "completion", "chosen", "rejected"})
"""The columns in which the toolkit's own rows have what is said."""

HUB_ID = r"^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w.-]+)?$"
"""A Hugging Face data set: `owner/name` or `owner/name:subset`."""

_NAMES_ITS_COLUMNS = ("alpaca", "alpaca_prompt", "openai")


def _as_template(name: str) -> str:
    template_fields(name)
    return name


ColumnName = Annotated[str, Field(min_length=1), AfterValidator(_as_template)]
"""A column, or a template of a text from several columns."""
D = TypeVar("D", bound=StrictModel)

_MOST_STEPS = 2**62


class DistinctColumns(StrictModel):
    """Base of sections whose values are column names."""

    @model_validator(mode="after")
    def _each_name_once(self) -> Self:
        names = [name for name in self.model_dump().values() if name is not None]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} cannot mean two things at once; rename one of them")
        return self


class ColumnsConfig(DistinctColumns):
    """Names of a data set's columns; columns that do not exist are ignored.

    Instead of a name, a template makes a text of several columns, such as `"{question}\\n\\n{context}"`; then each of
    them must be there.
    """

    messages: ColumnName = "messages"
    """The whole conversation, as a list of `{role, content}`."""

    prompt: ColumnName = "prompt"
    """The user's text (or a list of messages), if there is no messages column."""

    completion: ColumnName = "completion"
    """The answer to the prompt."""

    system: ColumnName | None = None
    """System message of each row."""

    tools: ColumnName | None = "tools"
    """Tool definitions for the conversation, as a list of JSON objects; null ignores them."""

    weight: ColumnName | None = "weight"
    """Factor on the row's loss, above 0; rows without it count as 1, and null ignores the column."""


class PathConfig(StrictModel):
    """Where rows are read from."""

    path: LocalOrNamed
    """A `.jsonl`, `.json`, `.csv` or `.tsv` file (optionally with `.gz`), a `.parquet` file, a folder of such files, a
    pattern such as `data/*.jsonl`, the address of such data in a store (`s3://bucket/data/*.parquet`), a folder written
    by `save_to_disk`, or a Hugging Face data set: `owner/name` or `owner/name:subset`."""

    split: str = "train"
    """Split of a Hugging Face data set."""


class RowFormatConfig(StrictModel):
    """Base of sections with rows in some format; they have `columns`."""

    format: Format = "auto"
    """Format of the rows: `columns` for those that `columns` names, `sharegpt`, `alpaca` (`alpaca_prompt` with the text
    that Stanford Alpaca puts around it), `openai` or `transcripts`. `auto` takes another than `columns` only if all of
    the first 100 rows have it, and says so."""

    @model_validator(mode="after")
    def _columns_are_read(self) -> Self:
        columns: dict[str, str | None] = self.model_dump()["columns"]
        renamed = [key for key, name in columns.items() if key in CONVERSATION_COLUMNS and name != key]
        if self.format in _NAMES_ITS_COLUMNS and renamed:
            raise ValueError(f"format: {self.format} has columns of its own; leave out columns.{renamed[0]}")
        return self


class DataFileConfig(RowFormatConfig, PathConfig):
    """Where rows are read from, and in which format."""


class DatasetConfig(DataFileConfig):
    """One source of conversations."""

    type: Literal["conversations"] = "conversations"
    """Conversations, or prompts with completions; the default if `type` is omitted."""

    columns: ColumnsConfig = ColumnsConfig()
    """Names of the columns."""


class TextsConfig(PathConfig):
    """Texts without turns, for continued pre-training: every token is trained.

    A `.txt` or `.md` file is one text. A text that is longer than `chat.max_length` becomes several rows, and no token
    of it is lost.
    """

    type: Literal["text"]
    """Texts without turns."""

    column: ColumnName = "text"
    """The column with the text."""


AnyTrainingData = Annotated[
    Annotated[DatasetConfig | TextsConfig, Field(discriminator="type")], type_by_default("conversations")
]
"""A data set of toolkit-sft: conversations or texts."""


class HeldOutConfig(StrictModel, Generic[D]):
    """Held-out rows of any kind of data set, and when to evaluate them."""

    dataset: D | None = None
    """A separate data set."""

    fraction: float | None = Field(default=None, gt=0, lt=1)
    """Or: hold out this share of every training data set, chosen by content and seed, so that every run holds out the
    same rows."""

    every: int = Field(default=50, ge=1)
    """Optimizer steps between evaluations."""

    at_start: bool = True
    """Also evaluate before the first step, to see what training changes."""

    patience: int | None = Field(default=None, ge=1)
    """Stop after this many evaluations in a row without a better loss; null never stops early."""

    min_improvement: float = Field(default=0.0, ge=0)
    """How much lower the loss must be to count as better for `patience`."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.dataset is None) == (self.fraction is None):
            raise ValueError("give either `dataset` (a file of its own) or `fraction` (a share of the data)")
        return self

    @model_validator(mode="after")
    def _improvement_is_read(self) -> Self:
        if self.min_improvement and self.patience is None:
            raise ValueError("min_improvement has no effect without patience; give patience too, or leave it out")
        return self


class ValidationConfig(HeldOutConfig[AnyTrainingData]):
    """Held-out rows on which the loss is measured during training."""


class StageConfig(StrictModel):
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
    def _one_end(self) -> Self:
        if (self.until_step is None) == (self.epochs is None):
            raise ValueError("give exactly one of `until_step` (a step) and `epochs` (passes over the data)")
        if self.mix is None and self.epochs is None:
            raise ValueError("mix is missing; only a stage with `epochs` may omit it")
        return self

    def weights(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """Weight of each data set that the stage draws from; `sizes` are the row counts of all data sets."""
        return self.mix if self.mix is not None else {name: float(size) for name, size in sizes.items()}

    def steps(self, sizes: Mapping[str, int], rows_per_step: int) -> int:
        """Steps of a stage given in epochs.

        A data set that is in the mix but not in `sizes` counts as 0 rows here; the curriculum rejects it.

        Raises:
            ConfigError: there are more than can be counted.
        """
        assert self.epochs is not None
        rows = sum(sizes.get(name, 0) for name, weight in self.weights(sizes).items() if weight)
        if self.epochs * rows / rows_per_step > _MOST_STEPS:
            raise ConfigError(f"stage {self.name!r}: {self.epochs:g} epochs are more steps than can be counted")
        return max(1, whole_steps(self.epochs, rows / rows_per_step))


def require_something_drawn(mix: dict[str, float]) -> dict[str, float]:
    """Return a stage's weights; ValueError if all of them are 0."""
    if not any(mix.values()):
        raise ValueError("all weights are 0, so there is nothing to draw; raise one of them")
    return mix


OnBadRecord = Literal["error", "skip"]


def require_all_used(datasets: Iterable[str], used: Collection[str]) -> None:
    """Raise ValueError if a data set is in no stage's mix; `used` are those that are in one."""
    unused = [name for name in datasets if name not in used]
    if unused:
        raise ValueError(f"no stage uses {', '.join(unused)}; add it to a stage's mix or remove it from datasets")
