"""The config file of `toolkit-data run`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from posttrain.config.sections.answerers import AnswererConfig
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.config.sections.generation import AnsweringConfig, why_alike
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import DataPath, OneLine
from posttrain.dataserver.config.names import Fault, GraderCheck, NamedGraders, refuse
from posttrain.dataserver.config.prompts import DataserverPromptsConfig, FilePromptsConfig, RowSplit, form_of_prompts

PROMPTS = "prompts"
"""Name of the section of prompts, and of the data set that a file of prompts becomes."""
By = Literal["prompt", "row"]


class _Limited(StrictModel):
    limit: int | None = Field(default=None, ge=1)
    """Take only this many of the rows, chosen by their content; null takes all."""


class DataserverRows(_Limited, DataserverPromptsConfig):
    """Rows of a dataserver's config, graded as there."""

    split: RowSplit = "train"
    """The rows that are trained, the held-out ones, or all."""


class FileRows(_Limited, FilePromptsConfig):
    """Rows of a file, with graders of their own; the keys are those of a dataserver's data set."""


AnyPrompts = Annotated[
    Annotated[DataserverRows, Tag("rows")] | Annotated[FileRows, Tag("file")], Discriminator(form_of_prompts)
]


class SampleConfig(AnsweringConfig):
    """How prompts are answered."""

    n: int = Field(default=8, ge=1)
    """Answers per prompt; more than one requires a temperature above 0."""

    temperature: float = Field(default=1.0, ge=0)
    """0 always takes the most likely token; higher values give more varied answers."""

    @model_validator(mode="after")
    def _answers_differ(self) -> "SampleConfig":
        if fault := why_alike(self.n, self.temperature):
            raise ValueError(fault)
        return self


class _Kept(StrictModel):
    path: OneLine = Field(max_length=50)
    """Name of the file in the output folder, ending with `.jsonl`."""

    per_prompt: int = Field(default=1, ge=1)
    """At most this many rows for each prompt."""

    @field_validator("path")
    @classmethod
    def _is_a_name(cls, path: str) -> str:
        if Path(path).name != path or path.startswith(".") or not path.endswith(".jsonl"):
            raise ValueError(f"{path!r} is not the name of a .jsonl file in the output folder, such as good.jsonl")
        return path


class KeptAnswers(_Kept):
    """A file of good answers for toolkit-sft."""

    type: Literal["sft"]
    """Rows for toolkit-sft: a prompt with its completion."""

    min_reward: float = 1.0
    """Only answers with at least this reward are kept."""

    choose: Literal["best", "shortest", "random"] = "best"
    """Which of them are kept if there are more than `per_prompt`; equal ones are drawn at random."""


class KeptPairs(_Kept):
    """A file of preferences for toolkit-dpo."""

    type: Literal["pairs"]
    """Rows for toolkit-dpo: a prompt with a chosen and a rejected answer."""

    chosen: Literal["best", "random"] = "best"
    """Which answer is chosen: the one with the highest reward, or any that has a worse one."""

    rejected: Literal["worst", "random"] = "worst"
    """Which answer is rejected: the one with the lowest reward, or any that is worse by `min_gap`."""

    min_gap: float = Field(default=0.5, gt=0)
    """The reward of the chosen answer exceeds that of the rejected one by at least this."""

    max_length_ratio: float | None = Field(default=None, ge=1)
    """The longer of both answers has at most this many times the characters of the shorter one; null sets no limit."""


AnyKept = Annotated[KeptAnswers | KeptPairs, Field(discriminator="type")]


class DedupConfig(StrictModel):
    """Leave out what repeats something earlier."""

    exact: bool = True
    """Leave out copies; white space, case and the width of characters do not count."""

    near: float | None = Field(default=None, gt=0, le=1)
    """Also leave out near copies, of which the Jaccard similarity of runs of five words is at least this; null keeps
    them."""

    by: By = "prompt"
    """Compare prompts, before they are asked, or whole rows, before they are written."""

    @model_validator(mode="after")
    def _does_something(self) -> "DedupConfig":
        if not self.exact:
            reason = "near copies include exact ones" if self.near is not None else "there is nothing else to leave out"
            raise ValueError(f"exact: false, but {reason}; set it to true, or remove the section")
        return self


class DecontaminateConfig(StrictModel):
    """Leave out prompts that have a held-out text."""

    against: tuple[DataPath, ...] = Field(min_length=1)
    """Files of held-out rows, whose prompts are looked for, or their addresses in a store."""

    column: str | None = Field(default=None, min_length=1)
    """The column of their text; null for rows of conversations, prompts or pairs."""

    ngrams: int = Field(default=13, ge=1)
    """Look for runs of this many words of a held-out prompt; shorter ones are found only as copies."""

    share: float = Field(default=0.5, gt=0, le=1)
    """A prompt that has this share of a held-out prompt's runs of words is left out."""


class DataConfig(StrictModel):
    """Sample answers, grade them, and keep those worth training on."""

    output: ConfigPath = Path("runs/data")
    """Folder for the kept rows, the ledger and the answers; what is there is used again if nothing it depends on has
    changed."""

    prompts: AnyPrompts
    """What is asked: rows of a dataserver's config, or of a file with graders of its own."""

    model: AnswererConfig
    """Who answers: a model of a training config, or with `url` a server."""

    sample: SampleConfig = SampleConfig()
    """How prompts are answered."""

    graders: NamedGraders = Field(default_factory=dict)
    """Graders with parameters of their own, by the names that a file's `graders` use."""

    allow_code_execution: bool = False
    """Whether graders of a file may run code written by a model; see docs/security.md."""

    on_bad_record: OnBadRecord = "error"
    """Whether a row that cannot be asked stops the command, or is left out and counted."""

    keep: tuple[AnyKept, ...]
    """The files that are written."""

    control: bool = True
    """Write beside each file `NAME.control.jsonl` with as many rows for each prompt, chosen at random: if training on
    it is as good, the rewards did not help."""

    dedup: DedupConfig | None = None
    """Leave out what repeats something earlier; null keeps it."""

    decontaminate: DecontaminateConfig | None = None
    """Leave out prompts that have a held-out text; null asks them."""

    seed: int = Field(default=0, ge=0)
    """Seed for what is chosen at random; `sample.seed` is that of the answers."""

    @field_validator("keep")
    @classmethod
    def _files_differ(cls, keep: tuple[AnyKept, ...]) -> tuple[AnyKept, ...]:
        if not keep:
            raise ValueError("nothing would be written; name a file, such as {type: sft, path: good.jsonl}")
        seen: set[str] = set()
        faults = []
        for number, kept in enumerate(keep):
            names = {kept.path, control_name(kept.path)}
            if names & seen:
                faults.append(Fault((number, "path"), kept.path, f"{kept.path} is written twice; choose another name"))
            seen |= names
        refuse(faults)
        return keep

    @model_validator(mode="after")
    def _graders_fit(self) -> "DataConfig":
        if isinstance(self.prompts, FileRows):
            check = GraderCheck(self.graders, self.allow_code_execution)
            refuse(check.dataset_faults({PROMPTS: self.prompts}))
        elif self.graders or self.allow_code_execution:
            named = "graders" if self.graders else "allow_code_execution"
            raise ValueError(f"{named}: the rows are graded as their dataserver's config says; put it there")
        return self


def control_name(path: str) -> str:
    """The name of the control of a kept file."""
    return f"{path.removesuffix('.jsonl')}.control.jsonl"
