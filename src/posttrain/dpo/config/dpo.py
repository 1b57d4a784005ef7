"""The config file of `toolkit-dpo`."""

from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import DatasetConfig, OnBadRecord, StageConfig, require_all_used
from posttrain.config.sections.evaluation import GradedEvaluationConfig
from posttrain.config.sections.generation import GenerationConfig
from posttrain.config.sections.model import LoraConfig, ModelConfig, OneOrSeveralModels, require_lora_fits
from posttrain.config.sections.parallel import ParallelConfig, require_parallel_fits, trains_a_copy
from posttrain.config.sections.run import RunConfig, require_best_is_measured
from posttrain.config.sections.training import TrainingConfig, require_steps_fit, require_training_fits
from posttrain.config.strict import ConfigPath, StrictModel, type_by_default
from posttrain.config.values import OneLine
from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.data.curriculum.stages import check_stages, resolved_stages
from posttrain.dpo.config.data import (
    AnyPreferences,
    OnUselessPair,
    PreferenceValidationConfig,
)
from posttrain.dpo.losses.logistic import DPOMethod
from posttrain.dpo.losses.methods import AnyMethod


class CachedReference(StrictModel):
    """The model at the start of training; its log-probabilities are computed once and kept."""

    type: Literal["cached"] = "cached"
    """Log-probabilities of the model at the start of training, computed once before training and kept in the cache."""


class LiveReference(StrictModel):
    """The model at the start of training, evaluated at every step."""

    type: Literal["live"]
    """The same, computed at every step: from the base under a new adapter, otherwise from a frozen copy of the trained
    model."""


class SeparateReference(ModelConfig):
    """Another model, kept frozen in memory beside the trained one."""

    type: Literal["model"]
    """Another model with the same tokenizer, frozen and evaluated at every step."""

    adapter: ConfigPath | None = None
    """Folder of a LoRA adapter for this model."""

    _key: str = PrivateAttr("reference")


AnyReference = Annotated[
    Annotated[CachedReference | LiveReference | SeparateReference, Field(discriminator="type")],
    type_by_default("cached"),
]
"""The reference policy; cached if no type is given."""


class PreferenceTrainingConfig(TrainingConfig):
    """One optimizer step trains on `rows_per_step` pairs, or labelled answers, however many devices share the work."""

    rows_per_step: int = Field(default=16, ge=1)
    """Pairs (for kto: answers) per optimizer step, across all devices."""

    micro_batch_size: int = Field(default=4, ge=1)
    """Pairs (for kto: answers) that go through the model at once on one device."""

    learning_rate: float = Field(default=2e-5, gt=0)
    """Peak learning rate; about ten times lower than for SFT, and lower still if all weights are trained."""


class DPOConfig(OneOrSeveralModels):
    """Preference optimisation of a chat model, or of several."""

    lora: LoraConfig | None = LoraConfig()
    """The adapter; null trains all weights. Preference training uses no dropout, so `dropout` must be 0."""

    chat: ChatConfig = ChatConfig()
    """Template and length limit; the limit applies to prompt and answer together. A pair is truncated or dropped as a
    whole: truncation on the left removes the same prompt tokens from both sides and never any of an answer."""

    method: AnyMethod = DPOMethod()
    """The objective: dpo, ipo, hinge, robust, exo, apo_zero, apo_down, kto, orpo, simpo, cpo, or a mixture."""

    reference: AnyReference | None = None
    """What the model is compared with; `cached` by default, and none for orpo, simpo and cpo."""

    datasets: dict[OneLine, AnyPreferences] = Field(min_length=1)
    """The data sets, by the names that the stages use."""

    on_bad_record: OnBadRecord = "error"
    """Whether an unusable record, or one whose two prompts differ, stops the run, or is skipped and counted."""

    on_useless_pair: OnUselessPair = "drop"
    """Whether pairs of identical answers, and empty answers, are dropped and counted, or stop the run."""

    max_dropped_share: float = Field(default=0.5, ge=0, le=1)
    """Largest share of a data set's records that may be dropped as bad, useless or too long; above it the run is
    refused, and 1 never refuses."""

    validation: PreferenceValidationConfig | None = None
    """Held-out rows; none by default."""

    evaluation: GradedEvaluationConfig | None = None
    """Graded answers to held-out prompts; none by default. If there is one, its reward decides which checkpoint is the
    best."""

    stages: tuple[StageConfig, ...] = Field(min_length=1)
    """The curriculum: the stages in training order."""

    training: PreferenceTrainingConfig = PreferenceTrainingConfig()
    """Optimizer, learning-rate schedule and batch size; `rows_per_step` counts pairs, or answers for kto."""

    parallel: ParallelConfig = ParallelConfig()
    """How several processes share the model."""

    run: RunConfig = RunConfig()
    """Run directory, checkpoints and trackers."""

    generation: GenerationConfig = GenerationConfig()
    """How toolkit-predict answers with the trained model; training does not use it."""

    def curriculum_stages(self, sizes: dict[str, int]) -> list[Stage]:
        """The curriculum's form of the stages; `sizes` are the numbers of training rows of all data sets."""
        return resolved_stages(self.stages, sizes, self.training.rows_per_step)

    def steps_of(self, curriculum: Curriculum) -> int:
        """The optimizer step at which training ends; ConfigError if the schedule does not fit it."""
        return require_steps_fit(self.training, curriculum.total_steps)

    def preference_sources(self) -> dict[str, AnyPreferences]:
        """Every data set that is read, by its key in the config."""
        sources = {f"datasets.{name}": dataset for name, dataset in self.datasets.items()}
        if self.validation is not None and self.validation.dataset is not None:
            sources["validation.dataset"] = self.validation.dataset
        return sources

    def data_sources(self) -> dict[str, DatasetConfig]:
        """Every file that is read, by its key in the config."""
        return {
            f"{key}{inner}": source
            for key, dataset in self.preference_sources().items()
            for inner, source in dataset.sources().items()
        }

    # The checks below span several sections. Each belongs to the last of its sections, whose line the message names; a
    # section that is missing from `info.data` is itself invalid, which is reported separately.

    @field_validator("lora")
    @classmethod
    def _adapter_fits(cls, lora: LoraConfig | None, info: ValidationInfo) -> LoraConfig | None:
        if lora is not None and lora.dropout:
            raise ValueError(
                "dropout must be 0: with dropout the model would differ from its own reference before training, so "
                "preferences are trained without it"
            )
        for model in info.data.get("models", ()):
            require_lora_fits(lora, model)
        return require_lora_fits(lora, info.data.get("model"))

    @field_validator("reference")
    @classmethod
    def _reference_fits(cls, reference: AnyReference | None, info: ValidationInfo) -> AnyReference | None:
        method: AnyMethod | None = info.data.get("method")
        if method is None:
            return reference
        if not method.needs_reference and reference is not None:
            raise ValueError(f"{method.type} uses no reference; remove the section")
        return reference or CachedReference() if method.needs_reference else None

    @field_validator("datasets")
    @classmethod
    def _answers_fit(cls, datasets: dict[str, AnyPreferences], info: ValidationInfo) -> dict[str, AnyPreferences]:
        for name, dataset in datasets.items():
            _require_paired(dataset, info.data.get("method"), name)
        return datasets

    @field_validator("validation")
    @classmethod
    def _validation_fits(
        cls, validation: PreferenceValidationConfig | None, info: ValidationInfo
    ) -> PreferenceValidationConfig | None:
        if validation is not None and validation.dataset is not None:
            _require_paired(validation.dataset, info.data.get("method"), "dataset")
        return validation

    @field_validator("stages")
    @classmethod
    def _stages_fit(cls, stages: tuple[StageConfig, ...], info: ValidationInfo) -> tuple[StageConfig, ...]:
        datasets: dict[str, AnyPreferences] | None = info.data.get("datasets")
        if datasets is None:
            return stages
        require_all_used(datasets, check_stages(stages, datasets))
        return stages

    @field_validator("training")
    @classmethod
    def _steps_fit(cls, training: PreferenceTrainingConfig, info: ValidationInfo) -> PreferenceTrainingConfig:
        if "lora" in info.data:
            require_training_fits(training, info.data["lora"], info.data.get("model"))
        stages: tuple[StageConfig, ...] = info.data.get("stages", ())
        if stages and stages[-1].until_step is not None:
            require_steps_fit(training, stages[-1].until_step)
        return training

    @field_validator("parallel")
    @classmethod
    def _parallel_fits(cls, parallel: ParallelConfig, info: ValidationInfo) -> ParallelConfig:
        is_live = isinstance(info.data.get("reference"), LiveReference)
        others = {
            "evaluation, which asks the model for answers": info.data.get("evaluation") is not None,
            "reference.type: live without a new adapter, which keeps a copy": is_live and trains_a_copy(info.data),
        }
        return require_parallel_fits(parallel, info.data, others)

    @field_validator("run")
    @classmethod
    def _export_fits(cls, run: RunConfig, info: ValidationInfo) -> RunConfig:
        if run.push is not None and info.data.get("models"):
            raise ValueError("push: several models would share its revisions; give each a config of its own")
        return require_best_is_measured(run, info, "validation", "evaluation")


def _require_paired(dataset: AnyPreferences, method: AnyMethod | None, name: str) -> None:
    if dataset.labelled and method is not None and not method.unpaired:
        raise ValueError(
            f"{name}: {method.type} compares the two answers of a pair, but these answers are labelled individually; "
            "set method.type: kto, or give pairs"
        )
