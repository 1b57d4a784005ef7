"""`toolkit-sft --dry-run`: everything that can be checked without loading a model, and the plan of the run."""

from importlib.util import find_spec
from pathlib import Path

from rich import box
from rich.table import Table

from toolkit.core.curriculum.curriculum import Curriculum
from toolkit.core.ledger import ledger_table
from toolkit.core.models.location import locate_model
from toolkit.core.runs.directory import RunDirectory, check_run_directory
from toolkit.core.runs.processes import process_count
from toolkit.core.runs.progress import console
from toolkit.core.sources import open_source
from toolkit.errors import ModelError
from toolkit.sft.config import SFTConfig


def show_plan(config: SFTConfig, name: str, *, resume: bool = False, overwrite: bool = False) -> None:
    """Read and check all data, and print what would be trained, stage by stage; nothing is written.

    Raises:
        ConfigError, DataError, ModelError: as the run itself would.
    """
    location = locate_model(config.model.name)
    if config.model.adapter is not None:
        _require_adapter(config.model.adapter)
    run = RunDirectory(config.run.output_dir / name)
    if find_spec("transformers") is not None:
        curriculum = _tokenised_curriculum(config, run, resume)
    else:
        curriculum = _counted_curriculum(config)
    console.print(stage_table(curriculum, config.max_steps), soft_wrap=False)
    training = config.training
    at_once = training.micro_batch_size * process_count()
    console.print(f"run directory   {run.path}")
    console.print(f"model           {config.model.name} ({location.kind}), {_trained(config)}")
    console.print(
        f"optimizer step  {training.rows_per_step} rows: {training.micro_batch_size} at once × "
        f"{process_count()} process × {training.rows_per_step // at_once} micro-batches"
    )
    console.print(
        f"steps           {config.max_steps}, learning rate {training.learning_rate:g} {training.schedule}"
        f" after {training.warmup_steps} warm-up steps"
    )
    # The last of the checks: a plan is worth reading also where its run has ended.
    check_run_directory(run, resume=resume, overwrite=overwrite)
    console.print("nothing was trained (--dry-run)")


def stage_table(curriculum: Curriculum, max_steps: int) -> Table:
    """The curriculum as a table: each stage's steps, and the rows and epochs of each data set in it."""
    table = Table(title="Curriculum", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in ("stage", "steps", "data set", "rows drawn", "share", "epochs in all"):
        table.add_column(column, justify="left" if column in ("stage", "data set") else "right")
    epochs = curriculum.epochs_per_dataset()
    start = 0
    for index, stage in enumerate(curriculum.stages):
        draws = curriculum.draws_per_dataset(index)
        for first, (dataset, rows) in enumerate(draws.items()):
            table.add_row(
                "" if first else stage.name,
                "" if first else f"{start + 1}–{stage.until_step}",
                dataset,
                f"{rows:,}",
                f"{rows / sum(draws.values()):.1%}",
                f"{epochs[dataset]:.2f}",
            )
        start = stage.until_step
    if max_steps < start:
        table.caption = f"training.max_steps stops at step {max_steps}"
    return table


def _counted_curriculum(config: SFTConfig) -> Curriculum:
    """The curriculum where the base install cannot tokenise: too long rows are not known, so none is left out."""
    console.print("without the [train] extra rows are checked and counted but not tokenised, so there is no ledger")
    validation = config.validation
    sizes = {}
    for name, dataset in config.datasets.items():
        rows = len(open_source(dataset).read(config.on_bad_record, require_answer=True).records)
        fraction = validation.fraction if validation is not None else None
        sizes[name] = rows if fraction is None else rows - max(1, round(fraction * rows))
    if validation is not None and validation.dataset is not None:
        open_source(validation.dataset).read(config.on_bad_record, require_answer=True)
    return Curriculum(config.curriculum_stages(), sizes, config.training.rows_per_step, config.training.seed)


def _tokenised_curriculum(config: SFTConfig, run: RunDirectory, resume: bool) -> Curriculum:
    from toolkit.core.models.load import choose_backend
    from toolkit.core.runs.finish import finished_result
    from toolkit.core.runs.resume import find_resume_point
    from toolkit.core.training.arguments import accumulation_steps
    from toolkit.sft.data import prepare_data
    from toolkit.sft.train import run_identity

    accumulation_steps(config.training)
    tokenizer = choose_backend(config.model).load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    data = prepare_data(config, tokenizer, console.print)
    console.print(ledger_table(data.ledgers), soft_wrap=False)
    point = find_resume_point(run, run_identity(config, data, tokenizer), data.curriculum, resume=resume)
    if resume and finished_result(run, config.max_steps):
        console.print(f"{run.path} is finished: nothing is left to resume")
    elif point.checkpoint is not None:
        console.print(f"{run.path} would go on from step {point.counters.step}")
    return data.curriculum


def _require_adapter(folder: Path) -> None:
    if not (folder / "adapter_config.json").is_file():
        raise ModelError(f"model.adapter: {folder} has no adapter_config.json, so it is not a LoRA adapter")


def _trained(config: SFTConfig) -> str:
    if config.model.adapter is not None:
        return f"going on from the adapter {config.model.adapter}"
    if config.lora is None:
        return "all weights trained"
    return f"LoRA r={config.lora.r} on {config.lora.target_modules}"
