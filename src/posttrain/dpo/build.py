"""Wire the trainer: arguments, placeholder data, collator, callbacks and reference. Imports transformers' Trainer."""

from collections.abc import Callable, Mapping
from functools import lru_cache

from transformers import PrinterCallback, TrainingArguments

from posttrain.base.console import TrainingProgress
from posttrain.base.processes import process_count
from posttrain.data.step_plan import StepPlan, StepPlanner
from posttrain.data.tokenized import TokenizedDataset
from posttrain.dpo.batches import PreferenceCollator, with_padding
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.config.reference import CachedReference as CachedConfig
from posttrain.dpo.config.reference import SeparateReference
from posttrain.dpo.data import PreferenceData
from posttrain.dpo.datasets import PairedDataset
from posttrain.dpo.frozen import Frozen, start_digest, start_of_training, without_dropout
from posttrain.dpo.joined import takes_joined_rows
from posttrain.dpo.measures import METRICS
from posttrain.dpo.passes import cost_of_a_pass
from posttrain.dpo.reference import LiveReference, Reference, cached_reference
from posttrain.dpo.rows import RunRows, trained_sides
from posttrain.dpo.scores import AskedModel, RowScorer
from posttrain.dpo.separate import load_separate
from posttrain.dpo.trainer import PreferenceTrainer
from posttrain.models.backend import LoadedModel
from posttrain.runs.counters import RunCounters
from posttrain.runs.directory import RunDirectory
from posttrain.train.arguments import trainer_arguments
from posttrain.train.batches import positions
from posttrain.train.broken_steps import TrainedRows, place_of
from posttrain.train.callbacks import MetricsCallback, training_callbacks
from posttrain.train.step_log import StepLog
from posttrain.train.training_watchdogs import training_watchdogs
from posttrain.train.watchdogs import Watch

_NOTHING_LEFT = (
    "every pair of the step is told apart as far as the method asks, so these pairs teach nothing more: end the stage "
    "earlier (stages.until_step or epochs), mix in harder pairs, or lower training.learning_rate if it came early"
)


def build_trainer(
    config: DPOConfig,
    data: PreferenceData,
    loaded: LoadedModel,
    run: RunDirectory,
    counters: RunCounters,
    require_weights: Callable[[Mapping[str, str]], None] = lambda weights: None,
) -> PreferenceTrainer:
    """A trainer that is ready for `train()`; `counters` go on from where they are.

    What a cached reference does not have yet is computed here, by all ranks together.

    Args:
        require_weights: called before that with the digests of the weights on which the reference stands, by names;
            it may refuse them.
    """
    without_dropout(loaded.model)
    frozen = _frozen(config, loaded)  # first, while nothing is attached to the model yet
    if frozen is not None:
        require_weights({f"weights of {frozen.name}": frozen.weights})
    sizes = {name: dataset.sizes() for name, dataset in data.datasets.items()}
    planner = StepPlanner(data.curriculum, sizes, config.training.micro_batch_size)
    rows = RunRows(data.datasets, data.validation, config.chat.max_length)
    joined = not config.method.unpaired and takes_joined_rows(loaded.model)
    plan = _plans_with_padding(config, loaded, planner, rows, joined)
    steps = TrainedRows(plan, place_of(config.data_sources(), _one_side(data)))
    watch = Watch(training_watchdogs(config.training, data.max_steps, _NOTHING_LEFT))
    log = StepLog(run, TrainingProgress(data.max_steps), watch)
    metrics = MetricsCallback(log, counters, steps, measured=METRICS, shown="reward_accuracy")
    trainer = PreferenceTrainer(
        method=config.method,
        rows=rows,
        planner=planner,
        validation=data.validation,
        step_losses=steps.losses,
        joined=joined,
        model=loaded.model,
        args=_arguments(config, loaded, run, data.max_steps, counters.step),
        processing_class=loaded.tokenizer,
        data_collator=PreferenceCollator(planner, data.datasets, rows),
        train_dataset=positions(data.max_steps * config.training.rows_per_step),
        eval_dataset=positions(1) if data.validation else None,
        callbacks=training_callbacks(run, counters, config.run, config.validation, metrics),
    )
    trainer.remove_callback(PrinterCallback)
    if frozen is not None:
        trainer.reference = _reference(config, data, frozen, rows, trainer.scorer)
    return trainer


def _one_side(data: PreferenceData) -> dict[str, TokenizedDataset]:
    """Rows of which each has the line of its pair (answer), by the names of the data sets."""
    return {
        name: dataset.chosen if isinstance(dataset, PairedDataset) else dataset.completions
        for name, dataset in data.datasets.items()
    }


def _arguments(
    config: DPOConfig, loaded: LoadedModel, run: RunDirectory, max_steps: int, first_step: int
) -> TrainingArguments:
    return TrainingArguments(
        **trainer_arguments(
            config.training,
            config.run,
            run,
            max_steps=max_steps,
            compute_dtype=loaded.compute_dtype,
            validation=config.validation,
            first_step=first_step,
        )
    )


def _plans_with_padding(
    config: DPOConfig, loaded: LoadedModel, planner: StepPlanner, rows: RunRows, joined: bool
) -> Callable[[int], StepPlan]:
    """The planner's plans as they are counted: with the padding that is computed."""
    sides = trained_sides(labelled=config.method.unpaired)
    cost = cost_of_a_pass(loaded.device.type) if process_count() == 1 else None

    @lru_cache(maxsize=2)
    def plan(step: int) -> StepPlan:
        return with_padding(planner.plan(step), rows, planner.micro_batch_size, sides, cost, joined=joined)

    return plan


def _frozen(config: DPOConfig, loaded: LoadedModel) -> Frozen | None:
    """The reference's model, if the method has one."""
    if config.reference is None:
        return None
    if isinstance(config.reference, SeparateReference):
        separate = load_separate(config, config.reference)
        return Frozen(AskedModel(separate), "reference", start_digest(separate, new_adapter=False))
    new_adapter = _has_new_adapter(config)
    weights = start_digest(loaded.model, new_adapter=new_adapter)
    kept_apart = not isinstance(config.reference, CachedConfig)
    asked = start_of_training(loaded.model, new_adapter=new_adapter, asked_later=kept_apart)
    return Frozen(asked, "model.adapter on model.name" if config.model.adapter else "model.name", weights)


def _reference(config: DPOConfig, data: PreferenceData, frozen: Frozen, rows: RunRows, scorer: RowScorer) -> Reference:
    if not isinstance(config.reference, CachedConfig):
        return LiveReference(frozen.asked, scorer)
    drawn = data.curriculum.drawn_rows(data.max_steps)
    return cached_reference(frozen.asked, frozen.weights, rows, drawn, scorer)


def _has_new_adapter(config: DPOConfig) -> bool:
    return config.lora is not None and config.model.adapter is None
