"""Config of a dataserver's data sets: files, and items made by reasoning-gym."""

import os
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, field_validator

from posttrain.config.sections.datasets import ColumnName, DistinctColumns
from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.text.completions import ReasoningTags
from posttrain.dataserver.graders.text.extraction import Extract

OnMissingScore = Literal["abstain", "renormalise", "zero"]
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
    """Where the right answer of a row stands."""

    column: str = Field(default="answer", min_length=1)
    """The column; `a.b` is key b of the object in column a."""

    extract: Extract = "all"
    """Which part of it, where it is text: all, boxed, last_number, `{after: "####"}` or `{regex: "..."}`."""


class GradingOverride(StrictModel):
    """What a stage changes about how a data set is graded."""

    graders: Annotated[dict[str, Weight], SomethingCounts] | None = None
    """Graders and their weights in this stage, instead of the data set's own."""

    gates: Gates | None = None
    """Gates in this stage, instead of the data set's own."""


class PromptColumnsConfig(DistinctColumns):
    """What the columns of a data set are called; a column that is not there is passed over."""

    messages: ColumnName = "messages"
    """Whole conversations: a list of `{role, content}`. Assistant turns at the end are left out of the prompt."""

    prompt: ColumnName = "prompt"
    """The user's text (or a list of messages), where there is no messages column."""

    system: ColumnName | None = None
    """A system message of its own for each row."""

    tools: ColumnName | None = "tools"
    """Tool definitions, as a list of JSON objects; null reads none."""


class GradedDataset(StrictModel):
    """What all kinds of data sets have."""

    system: str | None = Field(default=None, min_length=1)
    """A system message for every row that brings none."""

    reasoning: ReasoningTags | None = None
    """The tags around the reasoning; without this section all of a completion is its answer."""

    graders: Annotated[dict[str, Weight], Field(min_length=1), SomethingCounts]
    """Graders and their weights. A name is one of the section `graders`, or the type of a built-in grader, which
    then has its defaults."""

    gates: Gates = ()
    """Graders whose scores multiply the reward."""

    on_missing_score: OnMissingScore = "abstain"
    """What a grader without a score does to the reward: none is given; the other weights share its part if it abstains
    (where it fails, none is given); or it counts as 0. A gate without a score gives no reward, or 0 under `zero`."""

    validation_fraction: float | None = Field(default=None, gt=0, lt=1)
    """Share of the rows that is kept for `split: validation` and never trained on; by content and seed."""

    @property
    def gold_is_missing(self) -> bool:
        """Whether the rows have no gold answers."""
        return False


class FileDataset(GradedDataset):
    """Rows of a file."""

    type: Literal["file"] = "file"
    """A file; this is also what a data set without a type is."""

    path: str = Field(min_length=1)
    """A `.jsonl`, `.json`, `.csv`, `.tsv` (also with `.gz`) or `.parquet` file, from `data_root` and inside it."""

    columns: PromptColumnsConfig = PromptColumnsConfig()
    """Names of the columns."""

    max_prompt_chars: int | None = Field(default=None, ge=1)
    """Leave out rows whose messages have more characters together; they are counted. Tokens are the trainer's to
    limit, in `rollout.max_prompt_tokens`."""

    max_prompt_percentile: float | None = Field(default=None, gt=0, lt=100)
    """Leave out the longest prompts: 95 keeps those that are no longer than 95 % of the file's prompts are."""

    gold: GoldConfig | None = GoldConfig()
    """Where the right answer stands; null where the graders need none."""

    @property
    def gold_is_missing(self) -> bool:
        """Whether the rows have no gold answers."""
        return self.gold is None

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        if "\0" in path:
            raise ValueError("the path holds a NUL character, which no file name can have")
        leads_up = PurePath(os.path.normpath(path)).parts[:1] == ("..",)
        if leads_up or PurePath(path).is_absolute() or path.startswith("~"):
            raise ValueError(f"{path!r} is outside data_root; give a relative path that stays inside")
        return path


class ReasoningGymDataset(GradedDataset):
    """Items of the package reasoning-gym, made on demand: item i depends on the seed and on i alone."""

    type: Literal["reasoning_gym"]
    """Items made by reasoning-gym; needs the extra `reasoning-gym`."""

    task: str = Field(min_length=1)
    """Which of its data sets, as `leg_counting`. To raise the difficulty stage by stage, name the task several
    times with other parameters and mix those data sets."""

    rows: int = Field(default=100_000, ge=1, le=10_000_000)
    """How many items there are before they repeat."""

    params: dict[str, JsonValue] = Field(default_factory=dict)
    """Parameters of the task, as its own documentation lists them."""


def _file_by_default(value: object) -> object:
    return {"type": "file", **value} if isinstance(value, dict) and "type" not in value else value


AnyDataset = Annotated[
    Annotated[FileDataset | ReasoningGymDataset, Field(discriminator="type")], BeforeValidator(_file_by_default)
]
