"""The config file of `toolkit-sft`."""

from pydantic import Field, model_validator

from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.data import DatasetConfig, OnBadRecord, StageConfig, ValidationConfig
from toolkit.core.config.generation import GenerationConfig
from toolkit.core.config.lora import LoraConfig
from toolkit.core.config.model import ModelConfig
from toolkit.core.config.run import RunConfig
from toolkit.core.config.strict import StrictModel
from toolkit.core.config.training import TrainingConfig
from toolkit.core.curriculum.curriculum import Curriculum, Stage


class SFTConfig(StrictModel):
    """Supervised fine-tuning of a chat model."""

    model: ModelConfig
    """The base model."""

    lora: LoraConfig | None = LoraConfig()
    """The adapter; null trains all weights."""

    chat: ChatConfig = ChatConfig()
    """Template, loss mask and length limit."""

    datasets: dict[str, DatasetConfig] = Field(min_length=1)
    """The data, each under the name by which the stages mix it."""

    on_bad_record: OnBadRecord = "error"
    """Whether a record that cannot be used stops the run, or is left out and counted."""

    validation: ValidationConfig | None = None
    """Held-out rows; none unless given."""

    stages: tuple[StageConfig, ...] = Field(min_length=1)
    """The curriculum: stages in the order in which they are trained."""

    training: TrainingConfig = TrainingConfig()
    """Optimizer, schedule and the shape of a step."""

    run: RunConfig = RunConfig()
    """Where the run is kept."""

    generation: GenerationConfig = GenerationConfig()
    """How toolkit-predict answers with the trained model; training does not read it."""

    @property
    def max_steps(self) -> int:
        """The optimizer step at which training ends."""
        return self.training.max_steps or self.stages[-1].until_step

    def curriculum_stages(self) -> list[Stage]:
        """The stages as the curriculum takes them."""
        return [Stage(stage.name, stage.until_step, stage.mix) for stage in self.stages]

    @model_validator(mode="after")
    def _stages_fit(self) -> "SFTConfig":
        used = {name for stage in self.stages for name in stage.mix}
        unused = [name for name in self.datasets if name not in used]
        if unused:
            raise ValueError(f"no stage uses {', '.join(unused)}; add it to a stage's mix or remove it from datasets")
        # The same checks as at training time, before any file is read: sizes of 1 stand for data not yet counted.
        Curriculum(self.curriculum_stages(), dict.fromkeys(self.datasets, 1), self.training.rows_per_step, 0)
        return self

    @model_validator(mode="after")
    def _steps_fit(self) -> "SFTConfig":
        end = self.stages[-1].until_step
        if self.max_steps > end:
            raise ValueError(
                f"training.max_steps {self.max_steps} is beyond the last stage, which ends at {end}; "
                "raise that stage's until_step"
            )
        if self.training.warmup_steps >= self.max_steps:
            raise ValueError(
                f"training.warmup_steps {self.training.warmup_steps} leaves no step of the {self.max_steps} to train "
                "at the full learning rate; lower it"
            )
        return self

    @model_validator(mode="after")
    def _adapter_and_export_fit(self) -> "SFTConfig":
        if self.model.adapter is not None and self.lora != LoraConfig():
            raise ValueError("model.adapter brings its own shape; leave the lora section out")
        if self.run.export == "best" and self.validation is None:
            raise ValueError("run.export: best needs a validation section to tell which is best")
        if self.model.quantization != "none" and self.lora is None:
            raise ValueError("quantised weights cannot be trained in full; keep the lora section or drop quantization")
        return self
