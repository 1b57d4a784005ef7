"""`toolkit-sft --dry-run`: check everything that needs no model, and print the plan."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from posttrain.base.console import console
from posttrain.config.sections.datasets import AnyTrainingData, OnBadRecord
from posttrain.config.sections.training import accumulation_steps
from posttrain.data.curriculum.curriculum import Curriculum, Draw
from posttrain.data.ledger import ledger_table
from posttrain.data.readers.texts import open_training_data
from posttrain.data.sources import ExampleStream
from posttrain.runs.directory import RunDirectory, check_run_directory
from posttrain.sft.config import SFTConfig
from posttrain.train.plan import (
    find_model,
    micro_batches_of,
    require_batching,
    rows_left_to_train,
    sampled_steps,
    show_epochs,
    show_estimate,
    show_experts,
    show_resume_point,
    stage_table,
    step_lines,
    trained_weights,
)

if TYPE_CHECKING:
    from posttrain.sft.data import SFTData
    from posttrain.train.cost.estimate import Estimate


def show_plan(config: SFTConfig, name: str, *, resume: bool = False, overwrite: bool = False) -> None:
    """Read and check all data, and print what would be trained, stage by stage; nothing is written.

    Raises:
        ConfigError, DataError, ModelError: as the run itself would.
    """
    location = find_model(config.model)
    run = RunDirectory(config.run.output_dir / name)
    data = _tokenised_data(config, run, resume) if find_spec("transformers") is not None else None
    curriculum = _counted_curriculum(config) if data is None else data.curriculum
    steps = config.steps_of(curriculum)
    console.print(stage_table(curriculum, steps), soft_wrap=False)
    show_epochs(config.stages, curriculum)
    console.print(f"run directory   {run.path}")
    console.print(
        f"model           {config.model.name} ({location.kind}), {trained_weights(config.model, config.lora)}"
    )
    console.print("\n".join(step_lines(config.training, steps, "rows")))
    if data is not None:
        show_experts(config)
        show_estimate(config, lambda: estimated(config, data))
    # Checked last: the plan of a finished run is worth reading too.
    check_run_directory(run, resume=resume, overwrite=overwrite)
    console.print("nothing was trained (--dry-run)")


def _counted_curriculum(config: SFTConfig) -> Curriculum:
    """The curriculum if the base install cannot tokenise: rows that are too long are unknown and so not left out."""
    console.print("without the [train] extra, rows are checked and counted but not tokenised, so there is no ledger")
    validation = config.validation
    fraction = validation.fraction if validation is not None else None
    sizes = {}
    for name, dataset in config.datasets.items():
        sizes[name] = rows_left_to_train(_count(dataset, config.on_bad_record), fraction)
    if validation is not None and validation.dataset is not None:
        _count(validation.dataset, config.on_bad_record)
    return Curriculum(config.curriculum_stages(sizes), sizes, config.training.rows_per_step, config.training.seed)


def _count(dataset: AnyTrainingData, on_bad_record: OnBadRecord) -> int:
    """Number of usable records; a text counts as one, however many rows it will be."""
    return sum(1 for _ in ExampleStream[Any](open_training_data(dataset), on_bad_record))


def _tokenised_data(config: SFTConfig, run: RunDirectory, resume: bool) -> "SFTData":
    from posttrain.models.load import choose_backend
    from posttrain.sft.data import prepare_data
    from posttrain.sft.train import run_identity
    from posttrain.train.identity import with_tasks

    accumulation_steps(config.training)
    tokenizer = choose_backend(config.model).load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    require_batching(config.training, config.model, config.chat.max_length)
    data = prepare_data(config, tokenizer, console.print)
    console.print(ledger_table(data.ledgers), soft_wrap=False)
    identity = run_identity(config, data, tokenizer)
    if config.evaluation is not None:
        from posttrain.evaluate.in_training import planned_tasks

        identity = with_tasks(identity, planned_tasks(config))
    show_resume_point(run, identity, data.curriculum, data.max_steps, resume=resume)
    return data


def estimated(config: SFTConfig, data: "SFTData") -> "Estimate":
    """Estimate the cost of the run's steps on this machine; ModelError if the model's shape is unknown."""
    from posttrain.data.curriculum.micro_batches import MicroBatchSize
    from posttrain.data.curriculum.step_plan import StepPlanner
    from posttrain.models.model_shape import TrainedModel
    from posttrain.train.cost.batches import Batch
    from posttrain.train.cost.estimate import Work, estimate

    sizes = {name: dataset.sizes() for name, dataset in data.datasets.items()}
    model = TrainedModel.of(config, data.max_steps)
    packs = model.packs_rows(config.chat.max_length)
    planner = StepPlanner(data.curriculum, sizes, MicroBatchSize.of(config.training, padding_free=packs))

    def batch(rows: Sequence[Draw]) -> Batch:
        lengths = [int(sizes[draw.dataset].lengths[draw.row]) - 1 for draw in rows]  # the last token is only predicted
        trained = sum(int(sizes[draw.dataset].trained_counts[draw.row]) for draw in rows)
        return Batch(len(rows), max(lengths), trained, packed=tuple(lengths) if packs else ())

    sampled = sampled_steps(data.max_steps)
    steps = [[[batch(rows)] for rows in micro_batches_of(planner, step)] for step in sampled]
    return estimate(model, Work(steps, data.max_steps))
