"""Config of a dataserver's data sets: files, Hugging Face data sets, and items made by reasoning-gym."""

import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from posttrain.base.text import as_url
from posttrain.config.sections.datasets import (
    HUB_ID,
    ColumnName,
    DistinctColumns,
    RowFormatConfig,
)
from posttrain.config.strict import StrictModel, type_by_default, written_as
from posttrain.config.values import OneLine, without_credentials
from posttrain.dataserver.graders.text.completions import ReasoningTags
from posttrain.dataserver.graders.text.extraction import Extract

OnMissingScore = Literal["abstain", "renormalise", "zero"]
_TAG = r"^[A-Za-z][A-Za-z0-9_.-]*$"
TagName = Annotated[
    str, Field(pattern=_TAG, max_length=100), written_as(_TAG, "letters, digits, '_', '.' and '-', a letter first")
]
Weight = Annotated[float, Field(ge=0, le=1_000_000)]


def _each_once(gates: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({name for name in gates if gates.count(name) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} would count twice; name each gate once")
    return gates


def _something_counts(weights: dict[str, float]) -> dict[str, float]:
    if not any(weights.values()):
        raise ValueError("no grader has a weight above 0, so every reward would be undefined; raise one of them")
    return weights


Gates = Annotated[tuple[str, ...], AfterValidator(_each_once)]
SomethingCounts = AfterValidator(_something_counts)


class GoldConfig(StrictModel):
    """Where to find a row's right answer."""

    column: str = Field(default="answer", min_length=1)
    """The column; `a.b` is key b of the object in column a."""

    extract: Extract = "all"
    """Which part of it, if it is text: all, boxed, last_number, `{after: "####"}` or `{regex: "..."}`."""


class TaskGrading(StrictModel):
    """What is different in the grading of a task's rows."""

    graders: Annotated[dict[str, Weight], SomethingCounts] | None = None
    """Graders and their weights for rows of this task, replacing the data set's own."""

    gates: Gates | None = None
    """Gates for rows of this task, replacing the data set's own."""


class GradingOverride(StrictModel):
    """What a stage changes in the grading of a data set."""

    graders: Annotated[dict[str, Weight], SomethingCounts] | None = None
    """Graders and their weights in this stage, replacing the data set's own and those of its tasks."""

    gates: Gates | None = None
    """Gates in this stage, replacing the data set's own and those of its tasks."""

    tasks: dict[str, TaskGrading] = Field(default_factory=dict)
    """Per task of the data set: graders and gates in this stage."""


class PromptColumnsConfig(DistinctColumns):
    """Names of a data set's columns; columns that do not exist are ignored."""

    messages: ColumnName = "messages"
    """The whole conversation, as a list of `{role, content}`. Trailing assistant turns are left out of the prompt."""

    prompt: ColumnName = "prompt"
    """The user's text (or a list of messages), if there is no messages column."""

    system: ColumnName | None = None
    """System message of each row."""

    tools: ColumnName | None = "tools"
    """Tool definitions, as a list of JSON objects; null ignores them."""


class GradedDataset(StrictModel):
    """Fields common to all kinds of data sets."""

    system: str | None = Field(default=None, min_length=1)
    """System message for rows that have none."""

    reasoning: ReasoningTags | None = None
    """The tags around the reasoning; without this section the whole completion is the answer."""

    graders: Annotated[dict[str, Weight], Field(min_length=1), SomethingCounts] | None = None
    """Graders and their weights. A name is either from the section `graders`, or the type of a built-in grader, which
    is then used with its defaults. Required, unless each task of the data set names its own."""

    gates: Gates = ()
    """Graders whose scores multiply the reward."""

    on_missing_score: OnMissingScore = "abstain"
    """What a grader without a score does to the reward: there is none (abstain); the other graders share its weight if
    it abstained, but there is no reward if it failed (renormalise); or it counts as 0 (zero). If a gate has no score,
    there is no reward, or 0 with `zero`."""

    validation_fraction: float | None = Field(default=None, gt=0, lt=1)
    """Share of the rows held out for `split: validation` and never trained on; chosen by content and seed."""

    @property
    def gold_is_missing(self) -> bool:
        """Whether the rows have no gold answers."""
        return False

    @property
    def grading_by_task(self) -> Mapping[str, TaskGrading]:
        """What each task changes; empty if the rows are all of one kind."""
        return {}

    @model_validator(mode="after")
    def _every_row_has_graders(self) -> Self:
        tasks = self.grading_by_task.values()
        if self.graders is None and not (tasks and all(task.graders for task in tasks)):
            raise ValidationError.from_exception_data("config", [{"type": "missing", "loc": ("graders",), "input": {}}])
        return self


class ReadDataset(RowFormatConfig, GradedDataset):
    """How rows that are read become prompts with gold answers."""

    columns: PromptColumnsConfig = PromptColumnsConfig()
    """Names of the columns."""

    max_prompt_chars: int | None = Field(default=None, ge=1)
    """Leave out rows whose messages together have more characters; they are counted. The limit in tokens is the
    trainer's `rollout.max_prompt_tokens`."""

    max_prompt_percentile: float | None = Field(default=None, gt=0, lt=100)
    """Leave out the longest prompts: 95 keeps those no longer than 95 % of the file's prompts. Lengths are in tokens if
    the config names a `tokenizer`, else in characters."""

    strip_tags: tuple[TagName, ...] = ()
    """Tags to remove from the prompts, such as `[think, answer]`: from assistant turns with what is between them, from
    other messages the tags alone. Prompts with such tags are counted."""

    gold: GoldConfig | None = GoldConfig()
    """Where to find the right answer; null if the graders do not need it."""

    task_column: ColumnName = "task"
    """The column that names each row's task, if there are `tasks`."""

    tasks: dict[OneLine, TaskGrading] = Field(default_factory=dict)
    """Graders and gates by the value of the task column, for files with rows of several kinds. A row with another
    value is a bad record."""

    @property
    def gold_is_missing(self) -> bool:
        """Whether the rows have no gold answers."""
        return self.gold is None

    @property
    def grading_by_task(self) -> Mapping[str, TaskGrading]:
        """What each task changes; empty if the rows are all of one kind."""
        return self.tasks


class FileDataset(ReadDataset):
    """Rows from a file."""

    type: Literal["file"] = "file"
    """A file; the default if `type` is omitted."""

    path: str = Field(min_length=1)
    """A `.jsonl`, `.json`, `.csv`, `.tsv` (optionally with `.gz`) or `.parquet` file, a folder of such files, or a
    pattern such as `puzzles/*.jsonl`; relative to `data_root` and inside it. Or the address of such data in a store:
    `s3://bucket/puzzles/*.jsonl`."""

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        if "\0" in path:
            raise ValueError("the path holds a NUL character, which no file name can have")
        if (url := as_url(path)) is not None:
            return without_credentials(url)
        leads_up = PurePath(os.path.normpath(path)).parts[:1] == ("..",)
        if leads_up or PurePath(path).is_absolute() or path.startswith("~"):
            raise ValueError(f"{path!r} is outside data_root; give a relative path that stays inside")
        return path


class HubDataset(ReadDataset):
    """Rows of a Hugging Face data set, read by a process of its own at each start, so that the server stays small."""

    type: Literal["hub"]
    """A Hugging Face data set; needs the package `datasets` (extra `train`)."""

    name: Annotated[str, written_as(HUB_ID, "owner/name or owner/name:subset")] = Field(pattern=HUB_ID)
    """`owner/name` or `owner/name:subset`."""

    split: str = Field(default="train", min_length=1)
    """Its split."""


class ReasoningGymDataset(GradedDataset):
    """Items from the package reasoning-gym, generated on demand: item i depends only on the seed and on i."""

    type: Literal["reasoning_gym"]
    """Items generated by reasoning-gym; needs the extra `reasoning-gym`."""

    task: str = Field(min_length=1)
    """Which of its data sets to use, such as `leg_counting`. To raise the difficulty stage by stage, define several
    data sets with the same task and different parameters, and mix those."""

    rows: int = Field(default=100_000, ge=1, le=10_000_000)
    """How many items there are before they repeat."""

    params: dict[str, JsonValue] = Field(default_factory=dict)
    """Parameters of the task, as listed in its own documentation."""


AnyDataset = Annotated[
    Annotated[FileDataset | HubDataset | ReasoningGymDataset, Field(discriminator="type")],
    type_by_default("file"),
]
