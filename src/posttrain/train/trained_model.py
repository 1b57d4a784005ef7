"""The model that a run trains, from its loading until the training has ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.lora import LoraConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.conversation.chat_template import use_trained_template
from posttrain.models.backend import Backend, LoadedModel, TrainingSettings
from posttrain.runs.directory import RunDirectory
from posttrain.runs.resume import ResumePoint
from posttrain.train.out_of_memory import memory_explained


class TrainerConfig(Protocol):
    """The config of a run, with the sections that decide how its model is loaded."""

    @property
    def model(self) -> ModelConfig: ...

    @property
    def lora(self) -> LoraConfig | None: ...

    @property
    def chat(self) -> ChatConfig: ...

    @property
    def training(self) -> TrainingConfig: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


@contextmanager
def trained_model(
    config: TrainerConfig, run: RunDirectory, point: ResumePoint, backend: Backend, *, longest: int, steps: int
) -> Iterator[LoadedModel]:
    """The model, to be trained within the context, which ends with one message where memory runs out.

    Args:
        point: where the run starts; what `compile: auto` came to before it holds for the rest.
        longest: tokens of the longest row.
        steps: optimizer steps of the whole run.

    Raises:
        RunError: memory ran out, of the device or of the machine.
    """
    with memory_explained(config.model_dump(mode="json"), run, point.counters) as sizes:
        training = config.training
        settings = TrainingSettings(
            chatml=config.chat.template == "chatml",
            max_length=longest,
            gradient_checkpointing=training.gradient_checkpointing,
            seed=training.seed,
            liger_kernel=training.liger_kernel,
            compile=point.compiled if training.compile == "auto" else training.compile,
            rows=steps * training.rows_per_step,
            rows_at_once=training.micro_batch_size,
        )
        loaded = backend.load_for_training(config.model, config.lora, settings=settings)
        use_trained_template(loaded.tokenizer, config.chat)  # every checkpoint has it beside its weights
        sizes.watch(loaded.model)
        yield loaded
