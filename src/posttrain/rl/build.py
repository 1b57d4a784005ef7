"""Wire the trainer: arguments, rows, engine, rewards, evaluation and callbacks. Imports TRL."""

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from datasets import Dataset
from transformers import EarlyStoppingCallback, PrinterCallback, TrainerCallback
from trl import GRPOConfig

from posttrain.base.console import TrainingProgress
from posttrain.conversation.encoder import ConversationEncoder
from posttrain.inference.load import end_ids
from posttrain.models.backend import LoadedModel
from posttrain.models.hf import keep_trained_weights_in_float32
from posttrain.rl.callbacks import RLMetricsCallback
from posttrain.rl.client.client import DataserverClient
from posttrain.rl.correction import ImportanceCorrection
from posttrain.rl.curriculum import held_out_count
from posttrain.rl.evaluation import EVALUATIONS, Evaluator, evaluation_file, sampling_of
from posttrain.rl.presets import resolve_objective
from posttrain.rl.rewards import TotalReward
from posttrain.rl.rollout.engines import RolloutEngine
from posttrain.rl.rollout.load import rollout_engine
from posttrain.rl.rollout.prompts import PromptSource
from posttrain.rl.rollout.rollouts import Rollouts, Timer
from posttrain.rl.run_plan import RunPlan
from posttrain.rl.trainer import CurriculumGRPOTrainer
from posttrain.rl.watchdogs import rl_watchdogs
from posttrain.runs.counters import RunCounters
from posttrain.train.arguments import trainer_arguments
from posttrain.train.callbacks import CheckpointCallback
from posttrain.train.schedule import ScheduleCallback
from posttrain.train.step_log import StepLog
from posttrain.train.watchdogs import Watch


@contextmanager
def open_trainer(
    plan: RunPlan,
    loaded: LoadedModel,
    encoder: ConversationEncoder,
    client: DataserverClient,
    counters: RunCounters,
) -> Iterator[CurriculumGRPOTrainer]:
    """A trainer that is ready for `train()`; `counters` go on from where they are. Its engine ends with the block."""
    # It prints whole batches where a reward is missing, which we count and show ourselves.
    logging.getLogger("trl.trainer.grpo_trainer").setLevel(logging.ERROR)
    arguments = _arguments(plan, loaded, counters.step)  # several processes find each other here
    with closing(rollout_engine(plan.config, loaded, end_ids(loaded, encoder), plan.run.path)) as engine:
        yield _trainer(plan, loaded, encoder, client, counters, engine, arguments)


def _trainer(
    plan: RunPlan,
    loaded: LoadedModel,
    encoder: ConversationEncoder,
    client: DataserverClient,
    counters: RunCounters,
    engine: RolloutEngine,
    arguments: GRPOConfig,
) -> CurriculumGRPOTrainer:
    config, rollout, timer = plan.config, plan.config.rollout, Timer()
    prompts = PromptSource(client, encoder, plan.clock, rollout.max_prompt_tokens)
    abstain_steps = config.dataserver.abstain_steps if config.dataserver.on_grade_failure == "abstain" else 0
    rewards = TotalReward(client, plan.clock, timer, abstain_steps)
    evaluator = _evaluator(plan, prompts, engine, loaded.tokenizer, client)
    correction = None
    if rollout.correction != "none":
        correction = ImportanceCorrection(rollout.correction, rollout.importance_limit)
    sampling = sampling_of(rollout, logprobs=correction is not None)
    trainer = CurriculumGRPOTrainer(
        evaluate_rewards=evaluator.evaluate if evaluator else None,
        correction=correction,
        end_ids=end_ids(loaded, encoder),
        model=loaded.model,
        reward_funcs=[rewards],
        args=arguments,
        processing_class=loaded.tokenizer,
        # The rows are their own numbers: what they ask is looked up when it is wanted.
        train_dataset=Dataset.from_dict(
            {"prompt": [str(row) for row in range(plan.clock.rows_needed(plan.max_steps))]}
        ),
        eval_dataset=Dataset.from_dict({"prompt": ["0"]}) if evaluator else None,
        rollout_func=Rollouts(plan.clock, prompts, engine, loaded.tokenizer, sampling, config.training.seed, timer),
        callbacks=_callbacks(plan, counters, prompts, rewards),
    )
    trainer.remove_callback(PrinterCallback)
    keep_trained_weights_in_float32(trainer.model)  # TRL makes the adapter of a quantised model bfloat16
    return trainer


def _evaluator(
    plan: RunPlan, prompts: PromptSource, engine: RolloutEngine, tokenizer: Any, client: DataserverClient
) -> Evaluator | None:
    evaluation = plan.config.evaluation
    if evaluation is None:
        return None
    count = held_out_count(plan.meta, evaluation)
    return Evaluator(evaluation, prompts, count, engine, tokenizer, client, plan.run.path / EVALUATIONS)


def _arguments(plan: RunPlan, loaded: LoadedModel, first_step: int) -> GRPOConfig:
    config, rollout = plan.config, plan.config.rollout
    common = trainer_arguments(
        config.training,
        config.run,
        plan.run,
        max_steps=plan.max_steps,
        compute_dtype=loaded.compute_dtype,
        validation=config.evaluation,
        first_step=first_step,
    )
    ours = {
        "metric_for_best_model": "eval_reward",
        "greater_is_better": True,
        # The evaluation of the step that is resumed from is made up for, where an outage kept it from being done.
        "eval_on_start": common["eval_on_start"] or _missed_evaluation(plan, first_step),
    }
    return GRPOConfig(
        **{**common, **ours},
        **resolve_objective(config.algorithm, config.objective).as_arguments(),
        num_generations=rollout.generations,
        num_generations_eval=1,
        steps_per_generation=plan.clock.steps_per_generation,
        num_iterations=rollout.iterations,
        max_completion_length=rollout.max_new_tokens,
        # The trained probabilities are those at the temperature that completions are sampled at.
        temperature=rollout.temperature,
        shuffle_dataset=False,
        disable_dropout=False,
        use_vllm=False,
        log_completions=False,
        sync_ref_model=False,
        cast_lm_head_to_fp32=False,
        multi_objective_aggregation="sum_then_normalize",
    )


def _missed_evaluation(plan: RunPlan, step: int) -> bool:
    evaluation = plan.config.evaluation
    if evaluation is None or step == 0 or (step % evaluation.every and step < plan.max_steps):
        return False
    return not evaluation_file(plan.run.path / EVALUATIONS, step).exists()


def _callbacks(
    plan: RunPlan, counters: RunCounters, prompts: PromptSource, rewards: TotalReward
) -> list[TrainerCallback]:
    config = plan.config
    callbacks: list[TrainerCallback] = []
    if config.evaluation is not None and config.evaluation.patience is not None:
        callbacks.append(EarlyStoppingCallback(config.evaluation.patience, config.evaluation.min_improvement))
    watch = Watch(rl_watchdogs(config, plan.max_steps))
    log = StepLog(plan.run, TrainingProgress(plan.max_steps), watch)
    return [
        *callbacks,  # first, so that the checkpoint callback sees its decision to stop
        ScheduleCallback(),
        RLMetricsCallback(plan, log, counters, prompts.of_generation, rewards),
        CheckpointCallback(plan.run, counters, config.run.keep_checkpoints, best="reward"),
    ]
