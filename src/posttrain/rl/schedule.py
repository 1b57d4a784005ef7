"""Map optimizer steps to generations and their prompts, and check the dataserver's numbers against them."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b

from posttrain.config.sections.training import accumulation_steps, require_schedule_fits
from posttrain.dataserver.schemas import Meta, StageMeta
from posttrain.errors import ConfigError
from posttrain.rl.config import EvaluationConfig, RLConfig
from posttrain.rl.rollout.filters.catalogue import require_known_graders


@dataclass(frozen=True)
class RolloutSchedule:
    """The generations of a run, counted from 0 like its optimizer steps.

    A generation completes the prompts of one dataserver iteration and serves `iteration_stride` optimizer steps; the
    iteration has the number of the first of these steps. Example: steps of 8 completions, 4 per prompt:

        steps_per_generation  passes   prompts_per_iteration  stride   generation 1 is made at step: it serves
        1                     1        2                      1        1:  step 1
        2                     1        4                      2        2:  steps 2 and 3, half of it each
        1                     2        2                      2        2:  steps 2 and 3, all of it twice
        2                     2        4                      4        4:  steps 4 and 5, and again 6 and 7

    Attributes:
        rows_per_step: completions per optimizer step, over all ranks.
        generations: completions per prompt, G.
        steps_per_generation: optimizer steps in one pass over a generation.
        passes: number of passes over each generation.
        staleness: generations that are made ahead, with older weights.

    Raises:
        ConfigError: a step would not consist of whole groups.
    """

    rows_per_step: int
    generations: int
    steps_per_generation: int = 1
    passes: int = 1
    staleness: int = 0

    def __post_init__(self) -> None:
        rows, group = self.rows_per_step, self.generations
        if rows % group:
            below, above = rows - rows % group, rows - rows % group + group
            nearest = f"{below} or {above}" if below else str(above)
            raise ConfigError(
                f"training.rows_per_step: {rows} is not a multiple of rollout.generations {group}, and the completions "
                f"of a prompt are trained in one step; choose {nearest}, or change rollout.generations"
            )

    @classmethod
    def of(cls, config: RLConfig) -> "RolloutSchedule":
        """The schedule of a config; ConfigError if its numbers do not fit each other or the number of processes."""
        training, rollout = config.training, config.rollout
        schedule = cls(
            training.rows_per_step,
            rollout.generations,
            rollout.steps_per_generation,
            rollout.iterations,
            rollout.staleness,
        )
        accumulation_steps(training)
        schedule.require_aligned(config.run.save_every, "run.save_every")
        if config.evaluation is not None:
            schedule.require_aligned(config.evaluation.every, "evaluation.every")
        return schedule

    @property
    def prompts_per_step(self) -> int:
        """Groups per optimizer step."""
        return self.rows_per_step // self.generations

    @property
    def prompts_per_iteration(self) -> int:
        """Distinct prompts per generation; the dataserver uses the same name."""
        return self.prompts_per_step * self.steps_per_generation

    @property
    def iteration_stride(self) -> int:
        """Optimizer steps from one generation to the next."""
        return self.steps_per_generation * self.passes

    def generation_of(self, step: int) -> int:
        """The generation that optimizer step `step` trains."""
        return step // self.iteration_stride

    def iteration_of(self, generation: int) -> int:
        """The optimizer step at which a generation is first trained; also the iteration whose prompts it completes."""
        return generation * self.iteration_stride

    def version_of(self, generation: int) -> int:
        """The optimizer steps behind the weights that make a generation: V(n) = max(0, (n − staleness)·stride)."""
        return max(0, generation - self.staleness) * self.iteration_stride

    def made_with(self, version: int) -> range:
        """The generations n with V(n) = `version`, the number of a step that starts a generation."""
        first = version // self.iteration_stride + self.staleness
        return range(first if version else 0, first + 1)

    def part_of(self, step: int) -> int:
        """Which of its generation's `steps_per_generation` parts a step trains."""
        return step % self.iteration_stride % self.steps_per_generation

    def generations_until(self, step: int) -> int:
        """How many generations are made before optimizer step `step`."""
        return -(-step // self.iteration_stride)

    def starts_generation(self, step: int) -> bool:
        """Whether a generation is made at a step; a run can be resumed only there."""
        return step % self.iteration_stride == 0

    def require_aligned(self, every: int, key: str) -> None:
        """Raise ConfigError unless a generation begins at every multiple of `every`, the value of config key `key`."""
        if not self.starts_generation(every):
            raise ConfigError(
                f"{key}: {every} falls in the middle of a generation, which serves {self.iteration_stride} optimizer "
                f"steps ({self._reuse()}); choose a multiple of {self.iteration_stride}"
            )

    def require_resumable(self, step: int) -> None:
        """Raise ConfigError unless a run can be resumed from a checkpoint taken after `step` steps."""
        if not self.starts_generation(step):
            below = step - step % self.iteration_stride
            raise ConfigError(
                f"the checkpoint of step {step} lies in the middle of a generation, which serves "
                f"{self.iteration_stride} optimizer steps ({self._reuse()}); resume from one of step {below} or "
                f"{below + self.iteration_stride}"
            )

    def require_pending(self, step: int, until: int, kept: Collection[int]) -> None:
        """Raise ConfigError unless a checkpoint after `step` steps has what the weights can no longer make.

        Args:
            until: the step at which training ends.
            kept: the generations in the checkpoint.
        """
        later = range(self.generation_of(step), self.generations_until(until))
        missing = [number for number in later if self.version_of(number) < step and number not in kept]
        if missing:
            raise ConfigError(
                f"the run ended at step {step}, and did not generate ahead for later steps, whose completions need "
                f"older weights (rollout.staleness: {self.staleness}); to train on, start a new run whose "
                "model.adapter (or model.name) is this run's folder"
            )

    def require_same_shape(self, prompts_per_iteration: int, iteration_stride: int) -> None:
        """Raise ConfigError unless these numbers from the dataserver's `/meta` equal this schedule's."""
        if (prompts_per_iteration, iteration_stride) == (self.prompts_per_iteration, self.iteration_stride):
            return
        raise ConfigError(
            f"the dataserver's prompts_per_iteration: {prompts_per_iteration} and iteration_stride: {iteration_stride} "
            f"do not fit this training: training.rows_per_step {self.rows_per_step}, {self.generations} completions "
            f"for each prompt, {self._reuse()}. In the dataserver's config set prompts_per_iteration: "
            f"{self.prompts_per_iteration} and iteration_stride: {self.iteration_stride}, or change training and "
            "rollout here"
        )

    def _reuse(self) -> str:
        return f"rollout.steps_per_generation {self.steps_per_generation} × rollout.iterations {self.passes}"


def require_within_curriculum(max_steps: int, total_iterations: int, *, beyond_last_stage: bool = False) -> None:
    """Raise ConfigError if `max_steps` exceeds the dataserver's `total_iterations`, unless `beyond_last_stage`."""
    if max_steps > total_iterations and not beyond_last_stage:
        raise ConfigError(
            f"training.max_steps: {max_steps} is beyond the dataserver's last stage, which ends at {total_iterations}; "
            "lower it, lengthen the stage, or set dataserver.beyond_last_stage: true to continue with that stage's mix"
        )


def require_fit(config: RLConfig, schedule: RolloutSchedule, meta: Meta) -> int:
    """Check the config against the dataserver's; return the optimizer step at which training ends.

    Raises:
        ConfigError: they do not fit; the message says which numbers would.
    """
    _require_optimizer_steps(config, meta)
    schedule.require_same_shape(meta.prompts_per_iteration, meta.iteration_stride)
    require_known_graders(config.rollout.filters, meta.graders.keys())
    _require_rollouts_fit(config, meta)
    max_steps = config.training.max_steps or meta.total_iterations
    require_within_curriculum(max_steps, meta.total_iterations, beyond_last_stage=config.dataserver.beyond_last_stage)
    try:
        require_schedule_fits(config.training, max_steps)
    except ConfigError as error:
        raise ConfigError(f"training: {error}") from None
    if config.evaluation is not None:
        held_out_count(meta, config.evaluation)
    return max_steps


def _require_rollouts_fit(config: RLConfig, meta: Meta) -> None:
    """Raise ConfigError if the dataserver cannot serve so far ahead, or has too few substitutes."""
    rollout = config.rollout
    lag = rollout.staleness + rollout.segments
    if meta.adaptive and lag > 1 and (meta.lag is None or meta.lag < lag):
        raise ConfigError(
            f"rollout.staleness: {rollout.staleness} and completions in {rollout.segments} segments ask for prompts "
            "before the grades are there that the adaptive dataserver chooses them by; set adaptive.lag: "
            f"{lag} in its config"
        )
    if rollout.rejected == "substitute" and rollout.attempts > meta.substitutes:
        raise ConfigError(
            f"rollout.attempts: {rollout.attempts}, but the dataserver has {meta.substitutes} substitutes for each "
            "prompt; raise `substitutes` in its config, or lower attempts"
        )


def held_out_count(meta: Meta, evaluation: EvaluationConfig) -> int:
    """Number of held-out prompts in an evaluation; ConfigError if the dataserver has none or too few."""
    there = sum(dataset.validation_rows for dataset in meta.datasets)
    if not there:
        raise ConfigError(
            "evaluation: the dataserver holds out no rows; set validation_fraction for a data set in its config, or "
            "leave the section out"
        )
    wanted = evaluation.prompts or there
    if wanted > there:
        raise ConfigError(f"evaluation.prompts: {wanted} is more than the {there} rows that the dataserver holds out")
    return wanted


def stage_of(meta: Meta, iteration: int) -> StageMeta:
    """The stage of an iteration; the last stage for iterations beyond it."""
    return next((stage for stage in meta.stages if iteration < stage.until_iteration), meta.stages[-1])


def graded_by(meta: Meta, iteration: int) -> dict[str, str]:
    """For each data set that an iteration may ask, what identifies its graders: rewards by others cannot be compared.

    That is a hash of the dataserver's config, and of the graders, gates and tasks of the data set in the stage.
    """
    stage = stage_of(meta, iteration)
    found = {}
    for dataset in (name for name, share in stage.mix.items() if share):
        tasks = {name: task.model_dump() for name, task in stage.tasks.get(dataset, {}).items()}
        graders = [meta.config_id, stage.graders.get(dataset), stage.gates.get(dataset), tasks]
        found[dataset] = blake2b(json.dumps(graders, sort_keys=True).encode(), digest_size=8).hexdigest()
    return found


def _require_optimizer_steps(config: RLConfig, meta: Meta) -> None:
    """Raise ConfigError if the dataserver's numbers fit only with `steps_per_generation` counted in micro-batches."""
    training, rollout = config.training, config.rollout
    micro_batches = accumulation_steps(training)
    steps, rest = divmod(rollout.steps_per_generation, micro_batches)
    if rest or micro_batches == 1:
        return
    prompts = training.rows_per_step // rollout.generations * steps
    if (meta.prompts_per_iteration, meta.iteration_stride) == (prompts, steps * rollout.iterations):
        raise ConfigError(
            f"rollout.steps_per_generation: {rollout.steps_per_generation} counts optimizer steps, but the "
            f"dataserver's prompts_per_iteration {meta.prompts_per_iteration} fits {rollout.steps_per_generation} "
            f"micro-batches; set it to {steps}"
        )


def prompt_hash_after(order_hash: str, sample_ids: Iterable[str]) -> str:
    """Extend `order_hash` by the samples of a step's generation, given in slot order."""
    hasher = blake2b(bytes.fromhex(order_hash), digest_size=8)
    for sample_id in sample_ids:
        hasher.update(sample_id.encode() + b"\n")
    return hasher.hexdigest()
