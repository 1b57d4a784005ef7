"""`toolkit-dpo`: a run of preference optimisation, step by named step."""

from functools import partial
from typing import Any

from posttrain.base.console import console
from posttrain.base.processes import is_main_process
from posttrain.config.sections.training import accumulation_steps
from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.data.ledger import ledger_table
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.data import PreferenceData, prepare_data
from posttrain.dpo.separate import require_same_tokens
from posttrain.models.load import choose_backend
from posttrain.runs.directory import RunDirectory
from posttrain.runs.failures import run_context
from posttrain.runs.resume import find_resume_point
from posttrain.train.identity import require_same_weights
from posttrain.train.identity import run_identity as identity_of
from posttrain.train.parallel import connect, require_unsharded
from posttrain.train.session import Session, require_kernels
from posttrain.train.watchdogs import training_watchdogs

_NOTHING_LEFT = (
    "every pair of the step is told apart as far as the method asks, so these pairs teach nothing more: end the stage "
    "earlier (stages.until_step or epochs), mix in harder pairs, or lower training.learning_rate if it came early"
)


def train(config: DPOConfig, name: str, *, resume: bool = False, overwrite: bool = False) -> dict[str, Any]:
    """Train as `config` says, in the run directory `<output_dir>/<name>`; returns its `result.json`.

    Raises:
        ConfigError, DataError, ModelError: the input is wrong; nothing was trained or overwritten.
        RunError: the run failed after it had started.
        RunInterrupted: Ctrl-C or SIGTERM ended it, after a checkpoint.
    """
    accumulation_steps(config.training)  # refuses a step that does not divide, before anything is read
    require_unsharded("toolkit-dpo")
    run = RunDirectory(config.run.output_dir / name)
    with run_context(run, resume=resume, overwrite=overwrite):
        return _train(config, run, resume=resume)


def _train(config: DPOConfig, run: RunDirectory, *, resume: bool) -> dict[str, Any]:
    session, data = open_session(config, run)
    if done := session.finished(resume=resume):
        return done
    point = find_resume_point(run, session.identity, data.curriculum, resume=resume)
    with session.model(point, resume=resume) as loaded:
        from posttrain.dpo.recipe import DPORecipe  # heavy, as the libraries that the backend has set up by now

        accelerator = connect()
        require_weights = partial(require_same_weights, run, session.identity, resume=resume)
        session.train(DPORecipe(config, data, loaded, accelerator, require_weights), accelerator, loaded, point)
    if not is_main_process():
        return {}
    from posttrain.dpo.report import finish  # heavy: matplotlib

    return finish(run, config, data.max_steps)


def open_session(config: DPOConfig, run: RunDirectory) -> tuple[Session, PreferenceData]:
    """Everything that comes before the model: backend, tokenizer and data, which are told of."""
    backend = choose_backend(config.model)
    require_kernels(config.training, backend.name)
    tokenizer = backend.load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    require_same_tokens(config, tokenizer)
    data = prepare_data(config, tokenizer, console.print)
    console.print(ledger_table(data.ledgers), soft_wrap=False)
    session = Session(
        command="toolkit-dpo",
        config=config,
        run=run,
        backend=backend,
        identity=run_identity(config, data, tokenizer),
        max_steps=data.max_steps,
        longest=config.chat.max_length,
        evaluations=config.validation,
        watchdogs=training_watchdogs(_NOTHING_LEFT),
        steps_of=partial(_steps_of, curriculum=data.curriculum),
        ledgers=data.ledgers,
    )
    return session, data


def run_identity(config: DPOConfig, data: PreferenceData, tokenizer: Any) -> dict[str, Any]:
    """Everything that must be the same for a resumed run to be the same run, bit for bit."""
    digests = {name: dataset.digest for name, dataset in data.datasets.items()}
    held_out = data.validation.digest if data.validation is not None else None
    sections = ("model", "lora", "chat", "method", "reference", "validation")
    return identity_of(config, sections, tokenizer, digests, held_out)


def _steps_of(config: DPOConfig, *, curriculum: Curriculum) -> int:
    """The step at which another config's training ends; `curriculum` is that of the run now, on the same data."""
    stages = config.curriculum_stages(curriculum.sizes)
    return config.steps_of(Curriculum(stages, curriculum.sizes, curriculum.rows_per_step, curriculum.seed))
