"""What the dataserver tells of its curriculum, held against the config."""

from posttrain.config.sections.training import TrainingConfig, accumulation_steps
from posttrain.dataserver.schemas import Meta
from posttrain.errors import ConfigError
from posttrain.rl.config.rl import EvaluationConfig, RLConfig
from posttrain.rl.schedule import RolloutSchedule, require_within_curriculum


def require_fit(config: RLConfig, schedule: RolloutSchedule, meta: Meta) -> int:
    """Hold the config against the dataserver's; returns the optimizer step at which training ends.

    Raises:
        ConfigError: they do not fit; the message says which numbers would.
    """
    _require_optimizer_steps(config, meta)
    schedule.require_same_shape(meta.prompts_per_iteration, meta.iteration_stride)
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


def _require_optimizer_steps(config: RLConfig, meta: Meta) -> None:
    """Raise ConfigError where the dataserver's numbers fit if `steps_per_generation` is taken for micro-batches."""
    training, rollout = config.training, config.rollout
    micro_batches = accumulation_steps(training)
    steps, rest = divmod(rollout.steps_per_generation, micro_batches)
    if rest or micro_batches == 1:
        return
    prompts = training.rows_per_step // rollout.generations * steps
    if (meta.prompts_per_iteration, meta.iteration_stride) == (prompts, steps * rollout.iterations):
        raise ConfigError(
            f"rollout.steps_per_generation: {rollout.steps_per_generation} counts optimizer steps, and the "
            f"dataserver's prompts_per_iteration {meta.prompts_per_iteration} fits {rollout.steps_per_generation} "
            f"micro-batches, which are {steps}; set it to {steps}"
        )


def _require_warmup_fits(training: TrainingConfig, max_steps: int) -> None:
    if training.warmup_steps >= max_steps:
        raise ConfigError(
            f"training.warmup_steps: {training.warmup_steps} leaves no step of the {max_steps} to train at the full "
            "learning rate; lower it"
        )
