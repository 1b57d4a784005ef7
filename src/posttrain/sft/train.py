"""`toolkit-sft`: run supervised fine-tuning from a config."""

import math
from collections import deque
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from posttrain.base.console import console
from posttrain.base.processes import is_main_process
from posttrain.config.sections.datasets import TextsConfig
from posttrain.config.sections.training import accumulation_steps
from posttrain.conversation.encoder import conversation_encoder
from posttrain.data.ledger import ledger_table
from posttrain.data.text_rows import end_of_text
from posttrain.hub.pushes import Pushes
from posttrain.models.load import choose_backend
from posttrain.runs.directory import RunDirectory
from posttrain.runs.finish import finish_run, summary
from posttrain.runs.resume import find_resume_point
from posttrain.sft.config import SFTConfig
from posttrain.sft.data import SFTData, prepare_data
from posttrain.train.identity import run_identity as identity_of
from posttrain.train.identity import with_tasks
from posttrain.train.parallel.launch import launched
from posttrain.train.parallel.ranks import connect
from posttrain.train.plan import show_epochs
from posttrain.train.session import Session, require_kernels, steps_on
from posttrain.train.watchdogs import Row, Watchdog, training_watchdogs

_NOTHING_LEFT = (
    "the model predicts every trained token of the step with certainty, so these rows have nothing left to teach: end "
    "the stage earlier (stages.until_step), mix in other data, or check whether all answers are the same"
)

# An answer can end in many ways, so its end is never certain; but below a probability of 0.1 nine in ten do not stop.
_END_LOSS = math.log(10)
_END_WINDOW = 20
# A model that must first learn its end token, e.g. a base model, takes some tens of steps.
_END_FEWEST = 50
# This many steps without a single trained end token are not chance.
_STEPS_WITHOUT_END = 10


def train(
    config: SFTConfig, name: str, *, resume: bool = False, overwrite: bool = False, reshard: bool = False
) -> dict[str, Any]:
    """Fine-tune as `config` says, in the run directory `<output_dir>/<name>`, and return its `result.json`.

    Args:
        reshard: whether the run that is resumed may have had other processes.

    Raises:
        ConfigError, DataError, ModelError: the input is wrong; nothing was trained or overwritten.
        RunError: the run failed after it had started.
        RunInterrupted: Ctrl-C or SIGTERM ended it, after a checkpoint.
    """
    accumulation_steps(config.training)  # rejects an indivisible step before anything is read
    run = RunDirectory(config.run.output_dir / name)
    with launched(run, config, resume=resume, overwrite=overwrite, reshard=reshard) as pushes:
        return _train(config, run, pushes, resume=resume, reshard=reshard)


def _train(
    config: SFTConfig, run: RunDirectory, pushes: Pushes | None, *, resume: bool, reshard: bool
) -> dict[str, Any]:
    session, data = open_session(config, run)
    session = replace(session.with_any_processes() if reshard else session, pushes=pushes)
    if done := session.finished(resume=resume):
        return done
    point = find_resume_point(run, session.identity, data.curriculum, resume=resume)
    with session.model(point, resume=resume) as loaded:
        from posttrain.sft.recipe import SFTRecipe  # slow import, once the backend has set up its libraries

        accelerator = connect()
        end_ids = conversation_encoder(config.chat, loaded.tokenizer).end_ids
        if any(isinstance(source, TextsConfig) for source in config.data_sources().values()):
            end_ids |= {end_of_text(loaded.tokenizer)}
        session.train(SFTRecipe(config, data, loaded, accelerator, end_ids), accelerator, loaded, point)
    if not is_main_process():
        return {}
    result = finish_run(run, config.run.export, data.max_steps)
    console.print(summary(result))
    return result


def open_session(config: SFTConfig, run: RunDirectory) -> tuple[Session, SFTData]:
    """Prepare all that precedes the model (backend, tokenizer and data), and print the ledger."""
    backend = choose_backend(config.model)
    from posttrain.evaluate.in_training import TrainingTasks  # imports transformers, once the backend is chosen

    require_kernels(config.training, backend.name, config.lora and config.lora.init)
    tokenizer = backend.load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    data = prepare_data(config, tokenizer, console.print)
    console.print(ledger_table(data.ledgers), soft_wrap=False)
    show_epochs(config.stages, data.curriculum)
    tasks = TrainingTasks.read(config)
    session = Session(
        command="toolkit-sft",
        config=config,
        run=run,
        backend=backend,
        identity=with_tasks(run_identity(config, data, tokenizer), tasks),
        max_steps=data.max_steps,
        longest=config.chat.max_length,
        evaluations=config.validation,
        watchdogs=sft_watchdogs(),
        steps_of=partial(steps_on, data.curriculum),
        ledgers=data.ledgers,
        tasks=tasks,
    )
    return session, data


def run_identity(config: SFTConfig, data: SFTData, tokenizer: Any) -> dict[str, Any]:
    """Everything that must be unchanged for a resumed run to be the same run, bit for bit."""
    digests = {name: dataset.digest for name, dataset in data.datasets.items()}
    held_out = data.validation.digest if data.validation is not None else None
    return identity_of(config, ("model", "lora", "chat", "validation"), tokenizer, digests, held_out)


def sft_watchdogs() -> list[Watchdog]:
    """The watchdogs of a supervised fine-tuning run."""
    return [*training_watchdogs(_NOTHING_LEFT), EndTokenUnlearnt()]


class EndTokenUnlearnt:
    """Warns if the token that ends an answer is not trained or stays unlikely: the model would not stop."""

    name = "end_token_unlearnt"

    def __init__(self) -> None:
        self._steps = 0
        self._losses: deque[float] = deque(maxlen=_END_WINDOW)

    def look(self, row: Row) -> str | None:
        """Check `end_token_loss`, which is missing if the step trained no end token."""
        self._steps += 1
        loss = row.get("end_token_loss")
        if loss is None:
            return self._never_trained()
        self._losses.append(loss)
        typical = median(self._losses)
        if self._steps < _END_FEWEST or typical <= _END_LOSS:
            return None
        return (
            f"where an answer ends, the model gives its end token a probability of {math.exp(-typical):.1%}, so it "
            "would not stop: raise training.learning_rate or train longer; if the token is new to the model, train its "
            "row with lora.modules_to_save: [embed_tokens, lm_head], or set chat.template: tokenizer"
        )

    def _never_trained(self) -> str | None:
        if self._losses or self._steps < _STEPS_WITHOUT_END:
            return None
        return (
            f"no answer in {self._steps} steps includes its end token, so the model does not learn to stop: raise "
            "chat.max_length or set chat.truncation: drop, and keep chat.min_end_tokens_kept above 0"
        )
