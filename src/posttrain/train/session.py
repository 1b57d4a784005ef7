"""The parts of a training run around the loop, from config to result, shared by SFT, DPO and RL."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import torch

from posttrain.base.console import TrainingProgress, console
from posttrain.base.processes import is_main_process, process_count
from posttrain.config.load import load_config
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.config.sections.optim.optimizers import OPTIMIZERS, OwnOptimizer
from posttrain.config.sections.parallel import ParallelConfig
from posttrain.config.sections.run import RunConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.conversation.saved_template import use_trained_template
from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.data.ledger import Ledger
from posttrain.errors import ConfigError
from posttrain.hub.pushes import Pushes
from posttrain.models.backend import Backend, LoadedModel, TrainingSettings
from posttrain.runs.attempt_log import begin_attempt
from posttrain.runs.directory import RunDirectory
from posttrain.runs.failures import ranks_explained
from posttrain.runs.finish import finished_run
from posttrain.runs.manifest import differences, write_description
from posttrain.runs.resume import ResumePoint, prepare_run_directory
from posttrain.train.evaluate import EVALUATIONS, discard_evaluations
from posttrain.train.identity import processes_of, require_loaded_weights, with_any_processes
from posttrain.train.memory import Phase, during, memory_explained
from posttrain.train.optim.optimizer import require_class
from posttrain.train.optim.schedules import schedule_change, schedule_in_words
from posttrain.train.parallel.launch import require_agreement
from posttrain.train.recipe import Evaluation, Evaluations, GradedTasks, Recipe
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

    @property
    def parallel(self) -> ParallelConfig: ...

    def model_dump(self, *, mode: str) -> dict[str, Any]: ...


class CurriculumConfig(Protocol):
    """The config of a training command whose rows a curriculum draws."""

    def curriculum_stages(self, sizes: dict[str, int]) -> list[Stage]: ...

    def steps_of(self, curriculum: Curriculum) -> int: ...


def steps_on(curriculum: Curriculum, config: CurriculumConfig) -> int:
    """The step at which another config's training ends; `curriculum` is the current run's, on the same data."""
    stages = config.curriculum_stages(curriculum.sizes)
    return config.steps_of(Curriculum(stages, curriculum.sizes, curriculum.rows_per_step, curriculum.seed))


@dataclass(frozen=True)
class Session:
    """One run of a training command, once its data are ready.

    Attributes:
        identity: what must be the same for a resumed run to be the same run.
        longest: tokens of the longest row.
        steps_of: number of optimizer steps that another config of this command would train, on the same data.
        tasks: graded tasks besides the recipe's own evaluation; they then decide which checkpoint is the best.
        pushes: what sends finished checkpoints to a hub; None if nothing does, and in all but the main process.
        prepare: restores what else is kept in the run directory to its state at a resume point.
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
    tasks: GradedTasks | None = None
    pushes: Pushes | None = None
    prepare: Callable[[ResumePoint], None] = lambda point: None

    def with_any_processes(self) -> "Session":
        """The session of a run that goes on with other processes than it had."""
        return replace(self, identity=with_any_processes(self.identity))

    def finished(self, *, resume: bool) -> dict[str, Any] | None:
        """The results of the run if `resume` finds nothing left to do, else None."""
        return finished_run(self.run, self.max_steps, self.identity) if resume else None

    @contextmanager
    def model(self, point: ResumePoint, *, resume: bool) -> Iterator[LoadedModel]:
        """The model, to be trained within the block; running out of memory there becomes one message.

        Raises:
            RunError: the device or the machine ran out of memory.
            ConfigError: the weights differ from those that the resumed run started with.
        """
        config: TrainerConfig = self.config
        training, shards = config.training, config.parallel.shards
        require_agreement(self.identity)
        if shards and self.backend.name != "hf":
            raise ConfigError(
                f"parallel.kind: fsdp2 does not go together with {self.backend.name}, which model.backend: auto takes "
                "here; set it to hf"
            )
        with memory_explained(config.model_dump(mode="json"), self.run, point.counters) as sizes:
            settings = TrainingSettings(
                chatml=config.chat.template == "chatml",
                max_length=self.longest,
                gradient_checkpointing=training.gradient_checkpointing,
                offload_embeddings=training.offload_embeddings,
                seed=training.seed,
                liger_kernel=training.liger_kernel,
                padding_free=point.padding_free if training.padding_free is None else training.padding_free,
                compile=False if shards else point.compiled if training.compile == "auto" else training.compile,
                rows=self.max_steps * training.rows_per_step,
                rows_at_once=training.micro_batch_size,
                sharded=shards,
                router_loss=training.router_loss,
            )
            with during(Phase.LOAD, "while loading the model"):
                loaded = self.backend.load_for_training(config.model, config.lora, settings=settings)
            use_trained_template(loaded.tokenizer, config.chat)  # every checkpoint saves it beside its weights
            sizes.watch(loaded.model)
            require_loaded_weights(self.run, self.identity, config.model, resume=resume)
            self.identity.update(compiled=loaded.compiled, padding_free=loaded.padding_free)
            yield loaded

    def train(self, recipe: Recipe, accelerator: "Accelerator", loaded: LoadedModel, point: ResumePoint) -> None:
        """Train from `point` to the end.

        Raises:
            RunInterrupted: Ctrl-C or SIGTERM stopped training, after a checkpoint.
            RunError: the loss or gradient was not finite, another process of the run ended, or a server stayed
                unreachable.
        """
        from posttrain.train.loop import Loop
        from posttrain.train.record.step_log import StepLog
        from posttrain.train.state import TrainState
        from posttrain.train.trackers.run_trackers import RunTrackers, last_logged
        from posttrain.train.trackers.tracker import TrackedRun

        config: TrainerConfig = self.config
        # Here too, not only around the whole run: torchrun does not wait for an engine or a server to close.
        with ranks_explained(self.run):
            logged = last_logged(self.run)  # of steps, some of which may be done again
            if is_main_process():
                self._describe(loaded, point, recipe.engine_facts())
            state = TrainState.build(accelerator, loaded, config.training, point)
            trackers = None
            if is_main_process():
                told = TrackedRun(self.run.path, config.model_dump(mode="json"), point.counters.step)
                trackers = RunTrackers(config.run.trackers, self.run, told, logged)
            log = StepLog(self.run, TrainingProgress(self.max_steps), Watch(self.watchdogs), trackers)
            accelerator.wait_for_everyone()
            own = [] if self.evaluations is None else [Evaluation(self.evaluations, recipe.measure, recipe.evaluate)]
            evaluations = [*own, *([] if self.tasks is None else [self.tasks.evaluation(loaded, self.run.path)])]
            if self.pushes is not None:
                self.pushes.begin()
            Loop(recipe, state, self.run, log, config.training, config.run, evaluations, self.pushes).train()

    def _describe(self, loaded: LoadedModel, point: ResumePoint, engine: dict[str, Any]) -> None:
        """Print what is trained and from where, and bring the run directory to the state at `point`."""
        from posttrain.models.adapters.experts import experts_in_words, has_experts
        from posttrain.models.quantised import is_quantised

        _announce_start(self.run, point, loaded.model)
        if loaded.sharded:
            console.print(f"each of {process_count()} processes has a share of the weights (FSDP2)")
        if has_experts(loaded.model.config):
            console.print(f"experts: {experts_in_words(loaded.model, quantised=is_quantised(loaded.model))}")
        if loaded.routers is not None:
            console.print(f"load-balancing loss of the routers: counted × {loaded.routers.coefficient:g}")
        console.print(f"steps: {schedule_in_words(self.config.training, self.max_steps)}")
        if point.checkpoint is not None:
            self._announce_changes(load_config(self.run.config, type(self.config)), point.counters.step)
        prepare_run_directory(self.run, point)
        identity = {**self.identity, **processes_of(self.config)}
        write_description(self.run, self.command, self.config, identity, self.ledgers, engine)
        begin_attempt(self.run)
        if self.tasks is not None and point.checkpoint is not None:
            discard_evaluations(self.run.path / EVALUATIONS, point.counters.step)
        self.prepare(point)

    def _announce_changes(self, before: Any, step: int) -> None:
        """Print how the config differs from the old one of the run, which is resumed after `step`."""
        now = self.config
        for change in differences(before.model_dump(mode="json"), now.model_dump(mode="json")):
            console.print(f"  changed since the run started: {change}")
        change = schedule_change(before.training, self.steps_of(before), now.training, self.steps_of(now), step)
        if change:
            console.print(f"  {change}")


def _announce_start(run: RunDirectory, point: ResumePoint, model: Any) -> None:
    """Print what is trained, and where the run starts or continues."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained, total = sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)
    console.print(f"trained parameters: {trained:,} of {total:,} ({trained / total:.1%})")
    if point.checkpoint is None:
        again = "; no checkpoint was written, so the run starts from the beginning" * point.starts_again
        console.print(f"run directory: {run.path}{again}")
    else:
        console.print(f"resuming {run.path} from step {point.counters.step}")
    for damaged in point.damaged:
        console.print(f"  {damaged.path.name} is damaged and kept as damaged-{damaged.path.name}: {damaged.reason}")


def require_kernels(training: TrainingConfig, backend: str, start: str | None = None) -> None:
    """Refuse settings that this machine or backend has no kernels for, before loading a model.

    `backend` is hf or unsloth, `start` is `lora.init`.

    Raises:
        ConfigError: an optimizer of bitsandbytes, Liger or offloading without a CUDA device; Liger, `compile`,
            `padding_free`, offloading or LoftQ with unsloth; Liger is not installed; or the optimizer cannot be
            created.
    """
    name = None if isinstance(training.optimizer, OwnOptimizer) else training.optimizer
    on_cuda = name is not None and OPTIMIZERS[name].package == "bitsandbytes"
    for key, instead, is_wanted in (
        (f"optimizer: {name}", "adamw", on_cuda),
        ("liger_kernel", "false", training.liger_kernel),
        ("offload_activations", "false", training.offload_activations),
        ("offload_embeddings", "false", training.offload_embeddings),
    ):
        if is_wanted and not torch.cuda.is_available():
            raise ConfigError(f"training.{key} needs a CUDA device; set it to {instead}")
    if not on_cuda:
        require_class(training, start)
    for is_wanted, reason in (
        (training.liger_kernel, "training.liger_kernel: unsloth has kernels of its own; set it to false"),
        (training.compile is True, "training.compile: unsloth does its own compilation; set it to auto"),
        (training.padding_free, "training.batching: unsloth has attention of its own; set it to auto"),
        (
            training.offload_activations,
            "training.offload_activations: unsloth moves activations itself, with gradient_checkpointing: true; set it "
            "to false",
        ),
        (training.offload_embeddings, "training.offload_embeddings: not with unsloth; set it to false"),
        (training.router_loss, "training.router_loss: not with unsloth; set it to 0"),
        (start == "loftq", "lora.init: unsloth's kernels pass over what loftq adds to layers; set it to null"),
    ):
        if is_wanted and backend == "unsloth":
            raise ConfigError(f"{reason}, or backend: hf")
    if training.liger_kernel and find_spec("liger_kernel") is None:
        raise ConfigError("training.liger_kernel: not installed here: pip install liger-kernel, or set it to false")
