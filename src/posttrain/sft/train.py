"""`toolkit-sft`: a supervised fine-tuning run, step by named step."""

from typing import TYPE_CHECKING, Any

from posttrain.base.console import console
from posttrain.base.processes import is_main_process
from posttrain.config.load import load_config
from posttrain.data.ledger import ledger_table
from posttrain.models.backend import LoadedModel
from posttrain.models.load import choose_backend
from posttrain.runs.counters import RunCounters
from posttrain.runs.description import write_description
from posttrain.runs.directory import RunDirectory
from posttrain.runs.finish import finish_run, finished_run, summary
from posttrain.runs.resume import ResumePoint, find_resume_point, prepare_run_directory
from posttrain.runs.run_context import guarded_run
from posttrain.sft.config import SFTConfig
from posttrain.sft.data import SFTData, prepare_data
from posttrain.train.announce import Schedule, announce_changes, announce_start
from posttrain.train.arguments import accumulation_steps, require_kernels
from posttrain.train.identity import require_loaded_weights
from posttrain.train.identity import run_identity as identity_of
from posttrain.train.running import run_training
from posttrain.train.sharding import require_whole_model
from posttrain.train.trained_model import trained_model

if TYPE_CHECKING:
    from posttrain.sft.trainer import CurriculumSFTTrainer


def train(config: SFTConfig, name: str, *, resume: bool = False, overwrite: bool = False) -> dict[str, Any]:
    """Fine-tune as `config` says, in the run directory `<output_dir>/<name>`; returns its `result.json`.

    Raises:
        ConfigError, DataError, ModelError: the input is wrong; nothing was trained or overwritten.
        RunError: the run failed after it had started.
        RunInterrupted: Ctrl-C or SIGTERM ended it, after a checkpoint.
    """
    accumulation_steps(config.training)  # refuses a step that does not divide, before anything is read
    require_whole_model("toolkit-sft")
    run = RunDirectory(config.run.output_dir / name)
    with guarded_run(run, resume=resume, overwrite=overwrite):
        return _train(config, run, resume=resume)


def _train(config: SFTConfig, run: RunDirectory, *, resume: bool) -> dict[str, Any]:
    backend = choose_backend(config.model)  # before TRL is imported: unsloth rewrites its classes
    require_kernels(config.training, backend.name)
    tokenizer = backend.load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    data = prepare_data(config, tokenizer, console.print)
    console.print(ledger_table(data.ledgers), soft_wrap=False)
    identity = run_identity(config, data, tokenizer)
    if resume and (done := finished_run(run, config.max_steps, identity)):
        return done
    point = find_resume_point(run, identity, data.curriculum, resume=resume)
    with trained_model(config, run, point, backend, longest=config.chat.max_length, steps=config.max_steps) as loaded:
        require_loaded_weights(run, identity, config.model, resume=resume)
        identity["compiled"] = loaded.compiled
        trainer = _build_trainer(config, data, loaded, run, point.counters)
        if is_main_process():
            _announce(config, run, point, loaded.model)
            prepare_run_directory(run, point)
            write_description(run, "toolkit-sft", config, identity, data.ledgers)
        run_training(trainer, run, point)
    if not is_main_process():
        return {}
    result = finish_run(run, config.run.export, config.max_steps)
    console.print(summary(result))
    return result


def run_identity(config: SFTConfig, data: SFTData, tokenizer: Any) -> dict[str, Any]:
    """Everything that must be the same for a resumed run to be the same run, bit for bit."""
    digests = {name: dataset.digest for name, dataset in data.datasets.items()}
    held_out = data.validation.digest if data.validation is not None else None
    return identity_of(config, ("model", "lora", "chat", "validation"), tokenizer, digests, held_out)


def _build_trainer(
    config: SFTConfig, data: SFTData, loaded: LoadedModel, run: RunDirectory, counters: RunCounters
) -> "CurriculumSFTTrainer":
    from posttrain.sft.build import build_trainer  # imports what a backend changes, so only now that it is there

    return build_trainer(config, data, loaded, run, counters)


def _announce(config: SFTConfig, run: RunDirectory, point: ResumePoint, model: Any) -> None:
    """Say what is trained, from where a resumed run goes on, and what about it is not as it was."""
    announce_start(run, point, model)
    if point.checkpoint is not None:
        before = load_config(run.config, SFTConfig)
        then, now = (Schedule(each, each.training, each.max_steps) for each in (before, config))
        announce_changes(then, now, point.counters.step)
