"""The config file of `toolkit-sft`."""

from typing import Annotated, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.datasets import (
    AnyTrainingData,
    OnBadRecord,
    StageConfig,
    ValidationConfig,
    require_all_used,
)
from posttrain.config.sections.evaluation import GradedEvaluationConfig
from posttrain.config.sections.generation import GenerationConfig
from posttrain.config.sections.model import LoraConfig, ModelConfig, require_lora_fits
from posttrain.config.sections.parallel import ParallelConfig, require_parallel_fits
from posttrain.config.sections.run import RunConfig, require_best_is_measured
from posttrain.config.sections.training import TrainingConfig, require_steps_fit, require_training_fits
from posttrain.config.strict import StrictModel
from posttrain.config.values import OneLine
from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.data.curriculum.stages import check_stages, resolved_stages


class SFTTrainingConfig(TrainingConfig):
    """One optimizer step trains on `rows_per_step` rows, however many devices share the work."""

    label_smoothing: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Share of each target that is spread evenly over the vocabulary; the validation loss is without it. None by
    default."""

    neftune_alpha: Annotated[float, Field(gt=0)] | None = None
    """Add noise to the embeddings in training (NEFTune, arXiv:2310.05914, which proposes 5 to 15), uniform up to
    alpha / √(tokens · width). The tokens are those of the longest row of a micro-batch, so `micro_batch_size` changes
    the result. It needs `batching: by_length`, which `auto` then is. None by default."""

    @model_validator(mode="after")
    def _noise_has_rows(self) -> Self:
        if self.neftune_alpha is not None and self.batching == "padding_free":
            raise ValueError("neftune_alpha: the noise depends on the length of padded rows; set batching: by_length")
        return self

    @property
    def padding_free(self) -> bool | None:
        """Whether to train without padding; None to decide by the model."""
        return False if self.neftune_alpha is not None else super().padding_free


class SFTConfig(StrictModel):
    """Supervised fine-tuning of a chat model."""

    model: ModelConfig
    """The base model."""

    lora: LoraConfig | None = LoraConfig()
    """The adapter; null trains all weights."""

    chat: ChatConfig = ChatConfig()
    """Template, loss mask and length limit."""

    datasets: dict[OneLine, AnyTrainingData] = Field(min_length=1)
    """The data sets, by the names that the stages use."""

    on_bad_record: OnBadRecord = "error"
    """Whether an unusable record stops the run, or is skipped and counted."""

    validation: ValidationConfig | None = None
    """Held-out rows; none by default."""

    evaluation: GradedEvaluationConfig | None = None
    """Graded answers to held-out prompts; none by default. If there is one, its reward decides which checkpoint is the
    best."""

    stages: tuple[StageConfig, ...] = Field(min_length=1)
    """The curriculum: the stages in training order."""

    training: SFTTrainingConfig = SFTTrainingConfig()
    """Optimizer, learning-rate schedule and batch size."""

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

    def data_sources(self) -> dict[str, AnyTrainingData]:
        """All data sources, by their keys in the config."""
        sources = {f"datasets.{name}": dataset for name, dataset in self.datasets.items()}
        if self.validation is not None and self.validation.dataset is not None:
            sources["validation.dataset"] = self.validation.dataset
        return sources

    # Each check below spans several sections and is attached to the last of them, whose line the message names. A
    # section missing from `info.data` is itself invalid, which is reported on its own.

    @field_validator("lora")
    @classmethod
    def _adapter_fits(cls, lora: LoraConfig | None, info: ValidationInfo) -> LoraConfig | None:
        return require_lora_fits(lora, info.data.get("model"))

    @field_validator("stages")
    @classmethod
    def _stages_fit(cls, stages: tuple[StageConfig, ...], info: ValidationInfo) -> tuple[StageConfig, ...]:
        datasets: dict[str, AnyTrainingData] | None = info.data.get("datasets")
        if datasets is None:
            return stages
        require_all_used(datasets, check_stages(stages, datasets))
        return stages

    @field_validator("training")
    @classmethod
    def _steps_fit(cls, training: SFTTrainingConfig, info: ValidationInfo) -> SFTTrainingConfig:
        if "lora" in info.data:
            require_training_fits(training, info.data["lora"], info.data.get("model"))
        stages: tuple[StageConfig, ...] = info.data.get("stages", ())
        if stages and stages[-1].until_step is not None:
            require_steps_fit(training, stages[-1].until_step)
        return training

    @field_validator("parallel")
    @classmethod
    def _parallel_fits(cls, parallel: ParallelConfig, info: ValidationInfo) -> ParallelConfig:
        others = {"evaluation, which asks the model for answers": info.data.get("evaluation") is not None}
        return require_parallel_fits(parallel, info.data, others)

    @field_validator("run")
    @classmethod
    def _export_fits(cls, run: RunConfig, info: ValidationInfo) -> RunConfig:
        return require_best_is_measured(run, info, "validation", "evaluation")
