"""The config file of `toolkit-rl-dataserver`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from posttrain.base.text import as_url
from posttrain.config.sections.datasets import OnBadRecord, StageConfig
from posttrain.config.sections.listen import ListenConfig
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import OneLine
from posttrain.data.curriculum.curriculum import Stage
from posttrain.data.curriculum.stages import check_stages
from posttrain.dataserver.config.adaptive import AdaptiveConfig
from posttrain.dataserver.config.datasets import AnyDataset, FileDataset, GradedDataset, GradingOverride
from posttrain.dataserver.config.names import Fault, GraderCheck, NamedGraders, refuse
from posttrain.dataserver.config.serving import LimitsConfig
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.errors import ConfigError


class RLStageConfig(StageConfig):
    """One stage of the curriculum. It ends at `until_step` of the trainer, or lasts for `epochs`.

    In an epoch each prompt of the data sets in its mix, taken together, is asked once: it lasts ⌈epochs × rows /
    prompts_per_iteration⌉ × iteration_stride steps. Without `mix` each data set is asked in proportion to its rows.
    """

    name: OneLine = Field(min_length=1)
    """Name shown in the plan, the server's responses, its journal and its metrics."""

    grading: dict[str, GradingOverride] = Field(default_factory=dict)
    """Per data set: graders, weights and gates that replace the data set's own in this stage."""

    @property
    def end(self) -> int:
        """The iteration at which the stage ends, once it is not given in epochs any more."""
        assert self.until_step is not None
        return self.until_step


class DataserverConfig(StrictModel):
    """Prompts and rewards for reinforcement learning."""

    data_root: ConfigPath = Path(".")
    """Folder that contains the data; no file outside it is read, not even through a symbolic link."""

    on_bad_record: OnBadRecord = "error"
    """Whether an unusable record keeps the server from starting, or is skipped and counted."""

    allow_code_execution: bool = False
    """Whether graders may run code written by a model; the docs say what the sandbox does and does not protect
    against."""

    tokenizer: ConfigPath | None = None
    """The model's `tokenizer.json` file, so that `max_prompt_percentile` counts tokens instead of characters."""

    graders: NamedGraders = Field(default_factory=dict)
    """Graders with parameters of their own, by the names that the data sets use."""

    datasets: dict[OneLine, AnyDataset] = Field(min_length=1)
    """The data sets, by the names that the stages use."""

    stages: tuple[RLStageConfig, ...] = Field(min_length=1)
    """The curriculum: the stages in training order."""

    after_last_stage: Literal["continue", "refuse"] = "continue"
    """Whether iterations past the last stage continue with its mix, or are refused."""

    prompts_per_iteration: int = Field(default=8, ge=1, le=2**20)
    """Prompts per iteration, across all ranks of the trainer: for a trainer that generates once per optimizer step, its
    batch size in completions divided by the number of generations per prompt."""

    iteration_stride: int = Field(default=1, ge=1)
    """Optimizer steps that share one set of prompts, for a trainer that uses its rollouts for several steps."""

    substitutes: int = Field(default=4, ge=0, le=32)
    """Other rows of the same data set that a trainer may request for each prompt, one after the other, for example if
    the completions of the first all got the same reward."""

    seed: int = 0
    """Determines the order of the rows and which ones are held out."""

    adaptive: AdaptiveConfig | None = None
    """Sampling that depends on earlier grades; without this section it depends only on the config and the data."""

    listen: ListenConfig = ListenConfig()
    """Address, token and log."""

    limits: LimitsConfig = LimitsConfig()
    """How much one request may contain, and how long a grader may take."""

    journal: JournalConfig = JournalConfig()
    """Where graded completions are stored."""

    def local_data(self) -> dict[str, Path]:
        """The files, folders or patterns of the data sets under the data root, by the names of the data sets."""
        named = {name: each.path for name, each in self.datasets.items() if isinstance(each, FileDataset)}
        return {name: self.data_root / path for name, path in named.items() if as_url(path) is None}

    def remote_data(self) -> dict[str, str]:
        """The addresses of the data sets that are in a store, by the names of the data sets."""
        named = {name: as_url(each.path) for name, each in self.datasets.items() if isinstance(each, FileDataset)}
        return {name: url for name, url in named.items() if url is not None}

    @property
    def total_iterations(self) -> int:
        """The iteration at which the last stage ends."""
        return self.stages[-1].end

    def with_ends(self, sizes: Mapping[str, int]) -> Self:
        """The config with the stages that are given in epochs turned into iterations and weights.

        `sizes` are the numbers of training rows of all data sets.

        Raises:
            ConfigError: the stages do not fit the data.
        """
        stages: list[RLStageConfig] = []
        for stage in self.stages:
            end = stage.until_step
            if end is None:
                begun = -(-stages[-1].end // self.iteration_stride) if stages else 0
                end = (begun + stage.steps(sizes, self.prompts_per_iteration)) * self.iteration_stride
            found = {"until_step": end, "epochs": None, "mix": stage.weights(sizes)}
            stages.append(stage.model_copy(update=found))
        try:
            strided_stages(stages, self.iteration_stride)
        except ValueError as error:
            raise ConfigError(f"iteration_stride: {error}") from None
        return self.model_copy(update={"stages": tuple(stages)})

    def curriculum_stages(self) -> list[Stage]:
        """The stages as the curriculum takes them: in draws of `prompts_per_iteration` rows, not in iterations."""
        return strided_stages(self.stages, self.iteration_stride)

    # A check that spans several sections runs at the last of them and reports the key at fault. A section missing from
    # `info.data` is itself invalid, which is reported on its own.

    @field_validator("datasets")
    @classmethod
    def _graders_fit(cls, datasets: dict[str, GradedDataset], info: ValidationInfo) -> dict[str, GradedDataset]:
        faults = [
            Fault((name,), name, "a data set's name must have 1 to 100 characters")
            for name in datasets
            if not name.strip() or len(name) > 100
        ]
        check = _grader_check(info)
        refuse([*faults, *(check.dataset_faults(datasets) if check else ())])
        return datasets

    @field_validator("stages")
    @classmethod
    def _stages_fit(cls, stages: tuple[RLStageConfig, ...], info: ValidationInfo) -> tuple[RLStageConfig, ...]:
        datasets: dict[str, GradedDataset] | None = info.data.get("datasets")
        if datasets is None:
            return stages
        faults = list(_curriculum_faults(stages, datasets))
        check = _grader_check(info)
        if check is not None:
            for index, stage in enumerate(stages):
                faults += check.stage_faults(index, stage.grading, stage.mix or dict.fromkeys(datasets, 1.0), datasets)
        refuse(faults)
        return stages

    @field_validator("iteration_stride")
    @classmethod
    def _stride_meets_stages(cls, stride: int, info: ValidationInfo) -> int:
        stages: tuple[RLStageConfig, ...] = info.data.get("stages", ())
        if all(stage.until_step is not None for stage in stages):
            strided_stages(stages, stride)
        return stride

    @field_validator("adaptive")
    @classmethod
    def _easy_dataset_is_there(cls, adaptive: AdaptiveConfig | None, info: ValidationInfo) -> AdaptiveConfig | None:
        datasets: dict[str, GradedDataset] | None = info.data.get("datasets")
        name = adaptive.easy.dataset if adaptive is not None and adaptive.easy is not None else None
        if name is not None and datasets is not None and name not in datasets:
            reason = f"there is no data set {name!r}; known: {', '.join(datasets)}"
            refuse([Fault(("easy", "dataset"), name, reason)])
        return adaptive

    @model_validator(mode="after")
    def _sections_fit(self) -> "DataserverConfig":
        used = {name for stage in self.stages for name in stage.mix or self.datasets}
        if self.adaptive is not None and self.adaptive.easy is not None:
            used.add(self.adaptive.easy.dataset)
        unused = [name for name in self.datasets if name not in used]
        if unused:
            reason = f"no stage uses {', '.join(unused)}; add it to a stage's mix or remove it from datasets"
            refuse([Fault(("stages",), self.stages, reason)])
        percentiles = [getattr(dataset, "max_prompt_percentile", None) for dataset in self.datasets.values()]
        if self.tokenizer is not None and not any(percentiles):
            reason = "no data set counts tokens; give one a max_prompt_percentile, or remove tokenizer"
            refuse([Fault(("tokenizer",), str(self.tokenizer), reason)])
        if self.adaptive is not None and any(stage.epochs for stage in self.stages):
            reason = "with adaptive sampling rows are asked by their grades, so there are no epochs; give until_step"
            refuse([Fault(("stages",), self.stages, reason)])
        if self.adaptive is not None and not self.journal.enabled:
            reason = "adaptive sampling needs the grades in the journal; keep it enabled, or remove adaptive"
            refuse([Fault(("journal", "enabled"), False, reason)])
        return self


def _grader_check(info: ValidationInfo) -> GraderCheck | None:
    """The check of grader names; None if the section `graders` is itself invalid."""
    graders = info.data.get("graders")
    return None if graders is None else GraderCheck(graders, info.data.get("allow_code_execution", True))


def _curriculum_faults(stages: tuple[RLStageConfig, ...], datasets: Mapping[str, GradedDataset]) -> Iterator[Fault]:
    try:
        check_stages(stages, datasets)
    except ConfigError as error:
        yield Fault((), stages, str(error))


def strided_stages(stages: Sequence[RLStageConfig], stride: int) -> list[Stage]:
    """The stages in units of `stride` iterations: a stage starts at its first iteration that the stride divides.

    Raises:
        ValueError: a stage has no such iteration.
    """
    strided, start = [], 0
    for stage in stages:
        end = -(-stage.end // stride)
        if stride > 1 and end == start:
            raise ValueError(
                f"stage {stage.name!r} has no iteration divisible by {stride}, so nothing would ever be drawn from it; "
                f"end it at {(start + 1) * stride} or later"
            )
        strided.append(Stage(stage.name, end, stage.mix or {}))
        start = end
    return strided
