"""`toolkit-dpo`: a run of preference optimisation, step by named step."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from posttrain.base.console import console
from posttrain.base.processes import is_main_process
from posttrain.config.load import load_config
from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.data.ledger import ledger_table
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.data import PreferenceData, prepare_data
from posttrain.dpo.separate import require_same_tokens
from posttrain.models.backend import LoadedModel
from posttrain.models.load import choose_backend
from posttrain.runs.counters import RunCounters
from posttrain.runs.description import write_description
from posttrain.runs.directory import RunDirectory
from posttrain.runs.finish import finished_run
from posttrain.runs.resume import ResumePoint, find_resume_point, prepare_run_directory
from posttrain.runs.run_context import guarded_run
from posttrain.train.announce import Schedule, announce_changes, announce_start
from posttrain.train.arguments import accumulation_steps, require_kernels
from posttrain.train.identity import require_loaded_weights, require_same_weights
from posttrain.train.identity import run_identity as identity_of
from posttrain.train.running import run_training
from posttrain.train.sharding import require_whole_model
from posttrain.train.trained_model import trained_model

if TYPE_CHECKING:
    from posttrain.dpo.trainer import PreferenceTrainer


def train(config: DPOConfig, name: str, *, resume: bool = False, overwrite: bool = False) -> dict[str, Any]:
    """Train as `config` says, in the run directory `<output_dir>/<name>`; returns its `result.json`.

    Raises:
        ConfigError, DataError, ModelError: the input is wrong; nothing was trained or overwritten.
        RunError: the run failed after it had started.
        RunInterrupted: Ctrl-C or SIGTERM ended it, after a checkpoint.
    """
    accumulation_steps(config.training)  # refuses a step that does not divide, before anything is read
    require_whole_model("toolkit-dpo")  # weights and log-probabilities of the reference are those of a whole model
    run = RunDirectory(config.run.output_dir / name)
    with guarded_run(run, resume=resume, overwrite=overwrite):
        return _train(config, run, resume=resume)


def _train(config: DPOConfig, run: RunDirectory, *, resume: bool) -> dict[str, Any]:
    backend = choose_backend(config.model)  # before the trainer is imported: unsloth rewrites its classes
    require_kernels(config.training, backend.name)
    tokenizer = backend.load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    require_same_tokens(config, tokenizer)
    data = prepare_data(config, tokenizer, console.print)
    console.print(ledger_table(data.ledgers), soft_wrap=False)
    identity = run_identity(config, data, tokenizer)
    if resume and (done := finished_run(run, data.max_steps, identity)):
        return done
    point = find_resume_point(run, identity, data.curriculum, resume=resume)
    with trained_model(config, run, point, backend, longest=config.chat.max_length, steps=data.max_steps) as loaded:
        require_loaded_weights(run, identity, config.model, resume=resume)
        identity["compiled"] = loaded.compiled
        require_weights = partial(require_same_weights, run, identity, resume=resume)
        trainer = _build_trainer(config, data, loaded, run, point.counters, require_weights)
        if is_main_process():
            _announce(config, data, run, point, loaded.model)
            prepare_run_directory(run, point)
            write_description(run, "toolkit-dpo", config, identity, data.ledgers)
        run_training(trainer, run, point)
    if not is_main_process():
        return {}
    from posttrain.dpo.report import finish  # heavy: matplotlib

    return finish(run, config, data.max_steps)


def run_identity(config: DPOConfig, data: PreferenceData, tokenizer: Any) -> dict[str, Any]:
    """Everything that must be the same for a resumed run to be the same run, bit for bit."""
    digests = {name: dataset.digest for name, dataset in data.datasets.items()}
    held_out = data.validation.digest if data.validation is not None else None
    sections = ("model", "lora", "chat", "method", "reference", "validation")
    return identity_of(config, sections, tokenizer, digests, held_out)


def _build_trainer(
    config: DPOConfig,
    data: PreferenceData,
    loaded: LoadedModel,
    run: RunDirectory,
    counters: RunCounters,
    require_weights: Callable[[Mapping[str, str]], None],
) -> "PreferenceTrainer":
    from posttrain.dpo.build import build_trainer  # imports the trainer, so only now that the backend is there

    return build_trainer(config, data, loaded, run, counters, require_weights)


def _announce(config: DPOConfig, data: PreferenceData, run: RunDirectory, point: ResumePoint, model: Any) -> None:
    """Say what is trained, from where a resumed run goes on, and what about it is not as it was."""
    announce_start(run, point, model)
    if point.checkpoint is not None:
        before = load_config(run.config, DPOConfig)
        then, now = (_schedule(each, data.curriculum) for each in (before, config))
        announce_changes(then, now, point.counters.step)


def _schedule(config: DPOConfig, curriculum: Curriculum) -> Schedule:
    """`curriculum` is that of the run now; an earlier config had the same data, or the run would not go on."""
    stages = config.curriculum_stages(curriculum.sizes)
    steps = config.steps_of(Curriculum(stages, curriculum.sizes, curriculum.rows_per_step, curriculum.seed))
    return Schedule(config, config.training, steps)
