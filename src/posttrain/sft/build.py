"""Wire the trainer: arguments, placeholder data, collator and callbacks. Imports TRL."""

from transformers import PrinterCallback
from trl import SFTConfig as TrlSFTConfig

from posttrain.base.console import TrainingProgress
from posttrain.conversation.encoder import conversation_encoder
from posttrain.data.step_plan import StepPlanner
from posttrain.models.backend import LoadedModel
from posttrain.models.hf import keep_trained_weights_in_float32
from posttrain.runs.counters import RunCounters
from posttrain.runs.directory import RunDirectory
from posttrain.sft.config import SFTConfig
from posttrain.sft.data import SFTData
from posttrain.sft.trainer import CurriculumSFTTrainer
from posttrain.sft.watchdogs import sft_watchdogs
from posttrain.train.arguments import trainer_arguments
from posttrain.train.batches import CurriculumCollator, positions
from posttrain.train.broken_steps import TrainedRows, place_of
from posttrain.train.callbacks import MetricsCallback, training_callbacks
from posttrain.train.step_log import StepLog
from posttrain.train.watchdogs import Watch


def build_trainer(
    config: SFTConfig, data: SFTData, loaded: LoadedModel, run: RunDirectory, counters: RunCounters
) -> CurriculumSFTTrainer:
    """A trainer that is ready for `train()`; `counters` go on from where they are."""
    sizes = {name: dataset.sizes() for name, dataset in data.datasets.items()}
    planner = StepPlanner(data.curriculum, sizes, config.training.micro_batch_size)
    rows = TrainedRows(planner.plan, place_of(config.data_sources(), data.datasets))
    log = StepLog(run, TrainingProgress(config.max_steps), Watch(sft_watchdogs(config)))
    metrics = MetricsCallback(log, counters, rows, measured=("end_token_loss",))
    trainer = CurriculumSFTTrainer(
        validation=data.validation,
        end_ids=conversation_encoder(config.chat, loaded.tokenizer).end_ids,
        step_losses=rows.losses,
        model=loaded.model,
        args=_arguments(config, loaded, run, counters.step),
        processing_class=loaded.tokenizer,
        data_collator=CurriculumCollator(planner, data.datasets),
        train_dataset=positions(config.max_steps * config.training.rows_per_step),
        eval_dataset=positions(1) if data.validation else None,
        callbacks=training_callbacks(run, counters, config.run, config.validation, metrics),
    )
    trainer.remove_callback(PrinterCallback)
    keep_trained_weights_in_float32(trainer.model)  # TRL makes the adapter of a quantised model bfloat16
    return trainer


def _arguments(config: SFTConfig, loaded: LoadedModel, run: RunDirectory, first_step: int) -> TrlSFTConfig:
    return TrlSFTConfig(
        **trainer_arguments(
            config.training,
            config.run,
            run,
            max_steps=config.max_steps,
            compute_dtype=loaded.compute_dtype,
            validation=config.validation,
            first_step=first_step,
        ),
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        packing=False,
        padding_free=False,
        completion_only_loss=False,
        assistant_only_loss=False,
        shuffle_dataset=False,
        loss_type="nll",
        activation_offloading=False,
    )
