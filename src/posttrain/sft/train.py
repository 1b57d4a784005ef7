"""`toolkit-sft`: a supervised fine-tuning run, step by named step."""

from typing import Any

from posttrain.base.console import console
from posttrain.base.processes import is_main_process
from posttrain.config.sections.training import accumulation_steps
from posttrain.conversation.encoder import conversation_encoder
from posttrain.data.ledger import ledger_table
from posttrain.models.load import choose_backend
from posttrain.runs.directory import RunDirectory
from posttrain.runs.failures import run_context
from posttrain.runs.finish import finish_run, summary
from posttrain.runs.resume import find_resume_point
from posttrain.sft.config import SFTConfig
from posttrain.sft.data import SFTData, prepare_data
from posttrain.sft.watchdogs import sft_watchdogs
from posttrain.train.identity import run_identity as identity_of
from posttrain.train.parallel import connect, require_unsharded
from posttrain.train.session import Session, require_kernels


def train(config: SFTConfig, name: str, *, resume: bool = False, overwrite: bool = False) -> dict[str, Any]:
    """Fine-tune as `config` says, in the run directory `<output_dir>/<name>`; returns its `result.json`.

    Raises:
        ConfigError, DataError, ModelError: the input is wrong; nothing was trained or overwritten.
        RunError: the run failed after it had started.
        RunInterrupted: Ctrl-C or SIGTERM ended it, after a checkpoint.
    """
    accumulation_steps(config.training)  # refuses a step that does not divide, before anything is read
    require_unsharded("toolkit-sft")
    run = RunDirectory(config.run.output_dir / name)
    with run_context(run, resume=resume, overwrite=overwrite):
        return _train(config, run, resume=resume)


def _train(config: SFTConfig, run: RunDirectory, *, resume: bool) -> dict[str, Any]:
    session, data = open_session(config, run)
    if done := session.finished(resume=resume):
        return done
    point = find_resume_point(run, session.identity, data.curriculum, resume=resume)
    with session.model(point, resume=resume) as loaded:
        from posttrain.sft.recipe import SFTRecipe  # heavy, as the libraries that the backend has set up by now

        accelerator = connect()
        end_ids = conversation_encoder(config.chat, loaded.tokenizer).end_ids
        session.train(SFTRecipe(config, data, loaded, accelerator, end_ids), accelerator, loaded, point)
    if not is_main_process():
        return {}
    result = finish_run(run, config.run.export, config.max_steps)
    console.print(summary(result))
    return result


def open_session(config: SFTConfig, run: RunDirectory) -> tuple[Session, SFTData]:
    """Everything that comes before the model: backend, tokenizer and data, which are told of."""
    backend = choose_backend(config.model)
    require_kernels(config.training, backend.name)
    tokenizer = backend.load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    data = prepare_data(config, tokenizer, console.print)
    console.print(ledger_table(data.ledgers), soft_wrap=False)
    session = Session(
        command="toolkit-sft",
        config=config,
        run=run,
        backend=backend,
        identity=run_identity(config, data, tokenizer),
        max_steps=config.max_steps,
        longest=config.chat.max_length,
        evaluations=config.validation,
        watchdogs=sft_watchdogs(),
        steps_of=lambda other: other.max_steps,
        ledgers=data.ledgers,
    )
    return session, data


def run_identity(config: SFTConfig, data: SFTData, tokenizer: Any) -> dict[str, Any]:
    """Everything that must be the same for a resumed run to be the same run, bit for bit."""
    digests = {name: dataset.digest for name, dataset in data.datasets.items()}
    held_out = data.validation.digest if data.validation is not None else None
    return identity_of(config, ("model", "lora", "chat", "validation"), tokenizer, digests, held_out)
