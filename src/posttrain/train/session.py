"""A training command from its config to its result: what SFT, DPO and RL have in common around the loop."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from posttrain.base.console import TrainingProgress
from posttrain.base.processes import is_main_process
from posttrain.config.load import load_config
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.lora import LoraConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.config.sections.run import RunConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.conversation.chat_template import use_trained_template
from posttrain.data.ledger import Ledger
from posttrain.models.backend import Backend, LoadedModel, TrainingSettings
from posttrain.runs.directory import RunDirectory
from posttrain.runs.failures import ranks_explained
from posttrain.runs.finish import finished_run
from posttrain.runs.manifest import write_description
from posttrain.runs.resume import ResumePoint, prepare_run_directory
from posttrain.train.announce import Schedule, announce_changes, announce_start
from posttrain.train.identity import require_loaded_weights
from posttrain.train.memory_advice import Phase
from posttrain.train.out_of_memory import during, memory_explained
from posttrain.train.recipe import Evaluations, Recipe
from posttrain.train.watchdogs import Watch, Watchdog

if TYPE_CHECKING:
    from accelerate import Accelerator


class TrainerConfig(Protocol):
    """The config of any training command."""

    @property
    def model(self) -> ModelConfig: ...

    @property
    def lora(self) -> LoraConfig | None: ...

    @property
    def chat(self) -> ChatConfig: ...

    @property
    def training(self) -> TrainingConfig: ...

    @property
    def run(self) -> RunConfig: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Session:
    """One run of a training command, once its data are there.

    Attributes:
        identity: what must be the same for a resumed run to be the same run.
        longest: tokens of the longest row.
        steps_of: the optimizer step at which the training of another config of this command ends, on the same data.
        prepare: makes what else is kept in the run directory as it was at a point.
    """

    command: str
    config: Any
    run: RunDirectory
    backend: Backend
    identity: dict[str, Any]
    max_steps: int
    longest: int
    evaluations: Evaluations | None
    watchdogs: Sequence[Watchdog]
    steps_of: Callable[[Any], int]
    ledgers: list[Ledger] = field(default_factory=list)
    prepare: Callable[[ResumePoint], None] = lambda point: None

    def finished(self, *, resume: bool) -> dict[str, Any] | None:
        """What the run came to, where `resume` finds nothing left to do."""
        return finished_run(self.run, self.max_steps, self.identity) if resume else None

    @contextmanager
    def model(self, point: ResumePoint, *, resume: bool) -> Iterator[LoadedModel]:
        """The model, to be trained within the block, which ends with one message where memory runs out.

        Raises:
            RunError: memory ran out, of the device or of the machine.
            ConfigError: its weights are not those that the resumed run began with.
        """
        config: TrainerConfig = self.config
        training = config.training
        with memory_explained(config.model_dump(mode="json"), self.run, point.counters) as sizes:
            settings = TrainingSettings(
                chatml=config.chat.template == "chatml",
                max_length=self.longest,
                gradient_checkpointing=training.gradient_checkpointing,
                seed=training.seed,
                liger_kernel=training.liger_kernel,
                compile=point.compiled if training.compile == "auto" else training.compile,
                rows=self.max_steps * training.rows_per_step,
                rows_at_once=training.micro_batch_size,
            )
            with during(Phase.LOAD, "while the model was loaded"):
                loaded = self.backend.load_for_training(config.model, config.lora, settings=settings)
            use_trained_template(loaded.tokenizer, config.chat)  # every checkpoint has it beside its weights
            sizes.watch(loaded.model)
            require_loaded_weights(self.run, self.identity, config.model, resume=resume)
            self.identity["compiled"] = loaded.compiled
            yield loaded

    def train(self, recipe: Recipe, accelerator: "Accelerator", loaded: LoadedModel, point: ResumePoint) -> None:
        """Train from `point` to the end.

        Raises:
            RunInterrupted: Ctrl-C or SIGTERM ended it, after a checkpoint.
            RunError: loss or gradient were not finite, another process of the run ended, or a server stayed away.
        """
        from posttrain.train.loop import Loop
        from posttrain.train.parallel import trackers
        from posttrain.train.state import TrainState
        from posttrain.train.step_log import StepLog

        config: TrainerConfig = self.config
        # Here, and not only around the whole run: torchrun does not wait until an engine or a server is closed.
        with ranks_explained(self.run):
            if is_main_process():
                self._describe(loaded, point)
            state = TrainState.build(accelerator, loaded, config.training, point)
            sending = trackers(config.run.trackers, self.run.path) if is_main_process() else []
            log = StepLog(self.run, TrainingProgress(self.max_steps), Watch(self.watchdogs), sending)
            accelerator.wait_for_everyone()
            Loop(recipe, state, self.run, log, config.training, config.run, self.evaluations).train()

    def _describe(self, loaded: LoadedModel, point: ResumePoint) -> None:
        """Say what is trained and from where it goes on, and make the run directory what it must be there."""
        announce_start(self.run, point, loaded.model)
        if point.checkpoint is not None:
            before = load_config(self.run.config, type(self.config))
            then, now = (Schedule(each, each.training, self.steps_of(each)) for each in (before, self.config))
            announce_changes(then, now, point.counters.step)
        prepare_run_directory(self.run, point)
        write_description(self.run, self.command, self.config, self.identity, self.ledgers)
        self.prepare(point)
