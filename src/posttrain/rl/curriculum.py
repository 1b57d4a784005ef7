"""What the dataserver tells of its curriculum, held against the config."""

from posttrain.base.processes import process_count
from posttrain.config.sections.training import TrainingConfig
from posttrain.dataserver.schemas import Meta
from posttrain.errors import ConfigError
from posttrain.rl.clock import Clock, require_within_curriculum
from posttrain.rl.config.rl import EvaluationConfig, RLConfig


def clock_of(config: RLConfig) -> Clock:
    """The clock of a config, on as many processes as there are; ConfigError where its numbers do not fit."""
    training, rollout = config.training, config.rollout
    clock = Clock.of_step(
        training.rows_per_step,
        training.micro_batch_size,
        process_count(),
        rollout.generations,
        steps_per_generation=rollout.steps_per_generation,
        iterations=rollout.iterations,
    )
    clock.require_aligned(config.run.save_every, "run.save_every")
    if config.evaluation is not None:
        clock.require_aligned(config.evaluation.every, "evaluation.every")
    if config.algorithm == "rloo" and clock.iteration_stride > 1:
        raise ConfigError(
            "algorithm: rloo wants a generation to serve one optimizer step, and this one serves "
            f"{clock.iteration_stride}; lower rollout.steps_per_generation or rollout.iterations"
        )
    return clock


def require_fit(config: RLConfig, clock: Clock, meta: Meta) -> int:
    """Hold the config against the dataserver's; returns the optimizer step at which training ends.

    Raises:
        ConfigError: they do not fit; the message says which numbers would.
    """
    clock.require_same_shape(meta.prompts_per_iteration, meta.iteration_stride)
    max_steps = config.training.max_steps or meta.total_iterations
    require_within_curriculum(max_steps, meta.total_iterations, beyond_last_stage=config.dataserver.beyond_last_stage)
    _require_warmup_fits(config.training, max_steps)
    if config.evaluation is not None:
        held_out_count(meta, config.evaluation)
    return max_steps


def held_out_count(meta: Meta, evaluation: EvaluationConfig) -> int:
    """How many held-out prompts an evaluation asks; ConfigError where the dataserver has none, or too few."""
    there = sum(dataset.validation_rows for dataset in meta.datasets)
    if not there:
        raise ConfigError(
            "evaluation: the dataserver holds no rows out; set validation_fraction for a data set in its config, or "
            "leave the section out"
        )
    wanted = evaluation.prompts or there
    if wanted > there:
        raise ConfigError(f"evaluation.prompts: {wanted} is more than the {there} rows that the dataserver holds out")
    return wanted


def stage_name(meta: Meta, iteration: int) -> str:
    """The stage of an iteration; past the last one, the last."""
    return next((stage.name for stage in meta.stages if iteration < stage.until_iteration), meta.stages[-1].name)


def _require_warmup_fits(training: TrainingConfig, max_steps: int) -> None:
    if training.warmup_steps >= max_steps:
        raise ConfigError(
            f"training.warmup_steps: {training.warmup_steps} leaves no step of the {max_steps} to train at the full "
            "learning rate; lower it"
        )
