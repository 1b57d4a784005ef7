"""`toolkit-dpo --dry-run`: check everything that needs no weights, and print the plan."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from posttrain.base.console import console
from posttrain.base.processes import process_count
from posttrain.config.sections.model import ModelConfig
from posttrain.config.sections.training import accumulation_steps
from posttrain.data.curriculum.curriculum import Curriculum, Draw
from posttrain.data.ledger import ledger_table
from posttrain.data.sources import ExampleStream
from posttrain.dpo.config.data import AnyPreferences
from posttrain.dpo.config.dpo import CachedReference, DPOConfig, SeparateReference
from posttrain.dpo.losses.methods import MixtureMethod
from posttrain.dpo.preferences import open_preferences
from posttrain.errors import ModelError
from posttrain.runs.directory import RunDirectory, check_run_directory
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
    from posttrain.dpo.data import PreferenceData
    from posttrain.models.model_shape import TrainedModel
    from posttrain.train.cost.batches import Batch
    from posttrain.train.cost.estimate import Estimate


def show_plan(config: DPOConfig, name: str, *, resume: bool = False, overwrite: bool = False) -> None:
    """Read and check all data, and print what would be trained, stage by stage; the run directory is not written to.

    Raises:
        ConfigError, DataError, ModelError: as in the run itself.
    """
    location = find_model(config.model)
    reference = _reference(config)
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
    console.print(f"method          {_method(config)}")
    console.print(f"reference       {reference}")
    if isinstance(config.reference, CachedReference):
        console.print(f"                {_scored_rows(config, curriculum, steps)}")
    console.print("\n".join(step_lines(config.training, steps, "answers" if config.method.unpaired else "pairs")))
    if data is not None:
        show_experts(config)
        show_estimate(config, lambda: estimated(config, data))
    # Checked last, because a plan is worth reading even if its run has ended.
    check_run_directory(run, resume=resume, overwrite=overwrite)
    console.print("nothing was trained (--dry-run)")


def _method(config: DPOConfig) -> str:
    """The method with its numeric settings, by their names in the config."""
    if isinstance(config.method, MixtureMethod):
        parts = [
            f"{part.weight:g} × {part.type}{_numbers(part.model_dump(exclude={'weight'}))}"
            for part in config.method.losses
        ]
        return " + ".join(parts)
    return config.method.type + _numbers(config.method.model_dump())


def _numbers(fields: dict[str, object]) -> str:
    shown = [f"{key} {value:g}" for key, value in fields.items() if isinstance(value, int | float)]
    return f" ({', '.join(shown)})" if shown else ""


def _reference(config: DPOConfig) -> str:
    """What the model is compared with; ModelError if a separate reference model is missing."""
    if config.reference is None:
        return f"none: {config.method.type} uses no reference"
    if isinstance(config.reference, SeparateReference):
        location = find_model(config.reference)
        adapter = f" with the adapter {config.reference.adapter}" if config.reference.adapter else ""
        return f"{config.reference.name} ({location.kind}){adapter}, computed at every step"
    start = _start(config.model)
    cached = isinstance(config.reference, CachedReference)
    return f"{start}, {'computed once and cached' if cached else 'computed at every step'}"


def _scored_rows(config: DPOConfig, curriculum: Curriculum, steps: int) -> str:
    """How many training rows the reference scores: two for each pair, and for kto also two for each answer."""
    drawn = sum(map(len, curriculum.drawn_rows(steps).values()))
    unit = "answers" if config.method.unpaired else "pairs"
    held_out = ", plus the held-out rows" if config.validation is not None else ""
    return f"scored before the first step: {2 * drawn:,} rows for the {drawn:,} drawn {unit}{held_out}"


def _start(model: ModelConfig) -> str:
    return "the model at the start of training" + (f", with the adapter {model.adapter}" if model.adapter else "")


def _counted_curriculum(config: DPOConfig) -> Curriculum:
    """The curriculum for the base install, which cannot tokenise: it cannot tell which pairs are too long, and leaves
    none out."""
    console.print("without the [train] extra, pairs are checked and counted but not tokenised, so there is no ledger")
    validation = config.validation
    fraction = validation.fraction if validation is not None else None
    counts = {key: _count(config, dataset) for key, dataset in config.preference_sources().items()}
    sizes = {name: rows_left_to_train(counts[f"datasets.{name}"], fraction) for name in config.datasets}
    return Curriculum(config.curriculum_stages(sizes), sizes, config.training.rows_per_step, config.training.seed)


def _count(config: DPOConfig, dataset: AnyPreferences) -> int:
    """The data set's rows, as an optimizer step counts them."""
    stream = ExampleStream(open_preferences(dataset), config.on_bad_record, config.on_useless_pair)
    usable = sum(1 for _ in stream)
    records = min(usable, dataset.n_samples or usable)
    return records * 2 if config.method.unpaired and not dataset.labelled else records


def _tokenised_data(config: DPOConfig, run: RunDirectory, resume: bool) -> "PreferenceData":
    from posttrain.dpo.data import prepare_data
    from posttrain.dpo.train import require_same_tokens, run_identity
    from posttrain.models.load import choose_backend
    from posttrain.train.identity import with_tasks

    accumulation_steps(config.training)
    tokenizer = choose_backend(config.model).load_tokenizer(config.model, chatml=config.chat.template == "chatml")
    require_batching(config.training, config.model, config.chat.max_length)
    require_same_tokens(config, tokenizer)
    data = prepare_data(config, tokenizer, console.print)
    console.print(ledger_table(data.ledgers), soft_wrap=False)
    identity = run_identity(config, data, tokenizer)
    if config.evaluation is not None:
        from posttrain.evaluate.in_training import planned_tasks

        identity = with_tasks(identity, planned_tasks(config))
    show_resume_point(run, identity, data.curriculum, data.max_steps, resume=resume)
    return data


def estimated(config: DPOConfig, data: "PreferenceData") -> "Estimate":
    """What the steps of a run cost on this machine; ModelError if that is not known."""
    from posttrain.models.model_shape import TrainedModel
    from posttrain.train.cost.estimate import Work, estimate

    if config.method.unpaired or isinstance(config.reference, SeparateReference):
        raise ModelError("the extra passes of kto or a separate reference model are not estimated")
    trained = TrainedModel.of(config, data.max_steps)
    sampled = sampled_steps(data.max_steps)
    steps = _passes_of_steps(config, data, trained, sampled)
    asked = [replace(batch, has_gradient=False) for step in steps for batches in step for batch in batches]
    if config.reference is None:
        work = Work(steps, data.max_steps)
    elif isinstance(config.reference, CachedReference):
        drawn = sum(map(len, data.curriculum.drawn_rows(data.max_steps).values()))
        work = Work(steps, data.max_steps, asked, drawn / (len(sampled) * config.training.rows_per_step))
    else:
        both = [
            [[*batches, *(replace(each, has_gradient=False) for each in batches)] for batches in step] for step in steps
        ]
        work = Work(both, data.max_steps, has_copy=config.lora is None or config.model.adapter is not None)
    return estimate(trained, work)


def _passes_of_steps(
    config: DPOConfig, data: "PreferenceData", trained: "TrainedModel", sampled: Sequence[int]
) -> "list[list[list[Batch]]]":
    """The forward passes of each micro-batch of the optimizer steps `sampled`."""
    from posttrain.conversation.masks import IGNORED_LABEL
    from posttrain.data.curriculum.micro_batches import MicroBatchSize
    from posttrain.data.curriculum.step_plan import StepPlanner
    from posttrain.dpo.passes import cost_of_a_pass, plan_passes
    from posttrain.dpo.run_rows import RunRows, numbered_rows, trained_sides
    from posttrain.models.backend import training_device
    from posttrain.models.kernels.packing import pack
    from posttrain.train.cost.batches import Batch

    rows = RunRows(data.datasets, None, config.chat.max_length)
    packs = trained.packs_rows(config.chat.max_length)
    cost = cost_of_a_pass(training_device().type) if process_count() == 1 else None

    def passes(draws: Sequence[Draw]) -> list[Batch]:
        batch = numbered_rows(rows, draws, trained_sides(labelled=False))
        counts = (batch["labels"] != IGNORED_LABEL).sum(dim=1)
        lengths = batch["lengths"].tolist()
        if packs:
            segments = pack(batch["input_ids"], batch["labels"]).segments
            parts = tuple(each.end - each.first for each in segments)
            return [Batch(len(lengths), max(lengths), int(counts.sum()), packed=parts)]
        planned = plan_passes(lengths, cost)
        return [Batch(len(each.rows), each.width, int(counts[list(each.rows)].sum())) for each in planned]

    sizes = {name: dataset.sizes() for name, dataset in data.datasets.items()}
    planner = StepPlanner(data.curriculum, sizes, MicroBatchSize.of(config.training, padding_free=packs))
    return [[passes(draws) for draws in micro_batches_of(planner, step)] for step in sampled]
