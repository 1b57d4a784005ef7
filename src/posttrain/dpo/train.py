"""`toolkit-dpo`: run preference optimisation from a config."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rich.table import Table

from posttrain.base.console import console, new_table
from posttrain.base.processes import is_main_process
from posttrain.config.sections.training import accumulation_steps
from posttrain.data.ledger import ledger_table
from posttrain.dpo.config.dpo import DPOConfig, SeparateReference
from posttrain.dpo.data import PreferenceData, prepare_data
from posttrain.errors import ModelError
from posttrain.hub.pushes import Pushes
from posttrain.models.load import choose_backend
from posttrain.runs.directory import RunDirectory
from posttrain.runs.finish import finish_run, loss_results, summary
from posttrain.runs.resume import find_resume_point
from posttrain.train.identity import require_same_weights, with_tasks
from posttrain.train.identity import run_identity as identity_of
from posttrain.train.parallel.launch import launched
from posttrain.train.parallel.ranks import connect
from posttrain.train.plan import show_epochs
from posttrain.train.session import Session, require_kernels, steps_on
from posttrain.train.watchdogs import training_watchdogs

# Readable names of the measures.
_WORDS = {
    "loss": "loss",
    "reward_accuracy": "accuracy: chosen above rejected",
    "reward_margin": "reward margin",
    "chosen_reward": "reward of chosen answers",
    "rejected_reward": "reward of rejected answers",
    "chosen_logprob": "log p of chosen answers (nats)",
    "rejected_logprob": "log p of rejected answers (nats)",
    "divergence": "divergence from the reference (nats)",
}

_NOTHING_LEFT = (
    "every pair of the step already reaches the method's margin, so these pairs have nothing left to teach: end the "
    "stage earlier (stages.until_step or epochs), mix in harder pairs, or lower training.learning_rate if this came "
    "early"
)


def train(
    config: DPOConfig, name: str, *, resume: bool = False, overwrite: bool = False, reshard: bool = False
) -> dict[str, Any]:
    """Train as `config` says, in the run directory `<output_dir>/<name>`; returns its `result.json`.

    Args:
        reshard: whether the run that is resumed may have had other processes.

    Raises:
        ConfigError, DataError, ModelError: the input is wrong; nothing was trained or overwritten.
        RunError: the run failed after it had started.
        RunInterrupted: Ctrl-C or SIGTERM ended it, after a checkpoint.
    """
    accumulation_steps(config.training)  # refuses a step that does not divide evenly, before anything is read
    run = RunDirectory(config.run.output_dir / name)
    with launched(run, config, resume=resume, overwrite=overwrite, reshard=reshard) as pushes:
        return _train(config, run, pushes, resume=resume, reshard=reshard)


def _train(
    config: DPOConfig, run: RunDirectory, pushes: Pushes | None, *, resume: bool, reshard: bool
) -> dict[str, Any]:
    session, data = open_session(config, run)
    session = replace(session.with_any_processes() if reshard else session, pushes=pushes)
    if done := session.finished(resume=resume):
        return done
    point = find_resume_point(run, session.identity, data.curriculum, resume=resume)
    with session.model(point, resume=resume) as loaded:
        from posttrain.dpo.recipe import DPORecipe  # heavy, like the libraries that the backend has set up by now

        accelerator = connect()
        require_weights = partial(require_same_weights, run, session.identity, resume=resume)
        session.train(DPORecipe(config, data, loaded, accelerator, require_weights), accelerator, loaded, point)
    if not is_main_process():
        return {}
    return finish(run, config, data.max_steps)


def open_session(config: DPOConfig, run: RunDirectory) -> tuple[Session, PreferenceData]:
    """Prepare everything that comes before the model: backend, tokenizer and data; prints the data's ledgers."""
    backend = choose_backend(config.model)
    from posttrain.evaluate.in_training import TrainingTasks  # imports transformers, once the backend is chosen

    require_kernels(config.training, backend.name, config.lora and config.lora.init)
    tokenizer = backend.load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    require_same_tokens(config, tokenizer)
    data = prepare_data(config, tokenizer, console.print)
    console.print(ledger_table(data.ledgers), soft_wrap=False)
    show_epochs(config.stages, data.curriculum)
    tasks = TrainingTasks.read(config)
    session = Session(
        command="toolkit-dpo",
        config=config,
        run=run,
        backend=backend,
        identity=with_tasks(run_identity(config, data, tokenizer), tasks),
        max_steps=data.max_steps,
        longest=config.chat.max_length,
        evaluations=config.validation,
        watchdogs=training_watchdogs(_NOTHING_LEFT),
        steps_of=partial(steps_on, data.curriculum),
        ledgers=data.ledgers,
        tasks=tasks,
    )
    return session, data


def require_same_tokens(config: DPOConfig, tokenizer: Any) -> None:
    """Raise ModelError if the reference is a separate model whose tokens or their ids differ from `tokenizer`'s."""
    reference = config.reference
    if not isinstance(reference, SeparateReference):
        return
    other = choose_backend(reference).load_tokenizer(reference, chatml=config.chat.template == "chatml")
    if other.get_vocab() != tokenizer.get_vocab():
        raise ModelError(
            f"reference.name: {reference.name} has a different vocabulary from {config.model.name}, so it cannot score "
            "the same answers; choose a model with the same tokenizer and the same added_tokens"
        )


def run_identity(config: DPOConfig, data: PreferenceData, tokenizer: Any) -> dict[str, Any]:
    """Everything that must match for a resumed run to be the same run, bit for bit."""
    digests = {name: dataset.digest for name, dataset in data.datasets.items()}
    held_out = data.validation.digest if data.validation is not None else None
    sections = ("model", "lora", "chat", "method", "reference", "validation")
    return identity_of(config, sections, tokenizer, digests, held_out)


def finish(run: RunDirectory, config: DPOConfig, max_steps: int) -> dict[str, Any]:
    """Export the last or the best checkpoint, draw the plots, print the table, and write and return `result.json`."""
    from posttrain.runs.plots import Picture  # heavy: matplotlib

    pictures = {
        "loss": Picture("loss per pair", {"training": "loss", "held out": "eval_loss"}),
        "margin": Picture("reward margin", {"training": "reward_margin", "held out": "eval_reward_margin"}),
        "accuracy": Picture(
            "share of chosen above rejected", {"training": "reward_accuracy", "held out": "eval_reward_accuracy"}
        ),
        "rewards": Picture("reward", {"chosen": "chosen_reward", "rejected": "rejected_reward"}),
        "logprobs": Picture("log p of an answer (nats)", {"chosen": "chosen_logprob", "rejected": "rejected_logprob"}),
        "learning_rate": Picture("learning rate", {"training": "learning_rate"}),
    }
    result = finish_run(run, config.run.export, max_steps, pictures=pictures, results=preference_results)
    if result["held_out"]:
        console.print(change_table(result["held_out"]), soft_wrap=False)
    console.print(summary(result))
    return result


def preference_results(rows: list[dict[str, Any]], counters: Mapping[str, Any]) -> dict[str, Any]:
    """The results of `loss_results`, the last step's measures, and those of the first and last evaluations.

    `held_out` has `before` and `after` for each measure; it is empty with fewer than two evaluations.
    """
    last = next((row for row in reversed(rows) if "loss" in row), {})
    evaluated = [row for row in rows if "eval_loss" in row]
    held_out = {}
    if len(evaluated) > 1:
        first, final = evaluated[0], evaluated[-1]
        names = [name for name in _WORDS if None not in (first.get(f"eval_{name}"), final.get(f"eval_{name}"))]
        held_out = {name: {"before": first[f"eval_{name}"], "after": final[f"eval_{name}"]} for name in names}
    measures = {name: last[name] for name in _WORDS if name in last and name != "loss"}
    return {**loss_results(rows, counters), **measures, "held_out": held_out}


def change_table(held_out: dict[str, dict[str, float]]) -> Table:
    """A table of each measure before and after."""
    table = new_table("Held-out rows, first evaluation against last", "", "before", "after")
    for name, values in held_out.items():
        table.add_row(_WORDS[name], f"{values['before']:.3f}", f"{values['after']:.3f}")
    return table
