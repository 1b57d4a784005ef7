"""Which prompts TRL's GRPOTrainer wants at which optimizer step, as arithmetic alone.

The trainer takes the rows of its data set in their order and tells nobody at which step it takes them; the curriculum
of the dataserver counts optimizer steps. `Clock` computes from a row's number the step in which TRL generates and
grades its completions. The facts it rests on, each in TRL 1.14.2 unless another library is named:

1. One generation is P·W·SPG completions, and SPG is GA unless given: `GRPOConfig.__post_init__`
   (trl/trainer/grpo_config.py), which also refuses G < 2 and a G that does not divide them.
2. Without shuffling, rows come in the order 0, 1, 2 …, in chunks of U = P·W·SPG/G: each row G times running, each
   chunk SPG·μ times, an incomplete last chunk not at all; past the last row it begins again at row 0:
   `RepeatSampler` (trl/trainer/utils.py), as `GRPOTrainer._get_train_sampler` makes it.
3. One micro-step reads one chunk: `GRPOTrainer.get_train_dataloader` loads P·SPG completions per rank, and accelerate's
   `BatchSamplerShard` gives rank r the r-th of W equal pieces in a row. P need not be a multiple of G: a group may lie
   across ranks.
4. Micro-step i, counted from the start of the process, generates and grades the chunk it read if i is a multiple of
   R = SPG·μ, and otherwise throws it away and trains on what it has: `GRPOTrainer._prepare_inputs`. The count is not
   saved with a checkpoint, and evaluation does not touch it (`GRPOTrainer.training_step` counts).
5. An optimizer step is GA micro-steps, and a resume at step k skips the first k·GA of the chunks read: transformers'
   `Trainer._init_training_state` and `_run_epoch`.

So generation g holds rows g·U … g·U + U − 1 and is made in micro-step g·R, which belongs to optimizer step
⌊g·R/GA⌋ = `trainer_state.global_step` at that time. The max_steps·GA micro-steps of a run take ⌈max_steps·GA/R⌉
generations. A resume at step k goes on with generation ⌊k·GA/R⌋, which is a new one only if R divides k·GA.

Worked numbers, W = 1 unless given (the last is refused, since its steps differ in their number of prompts):

    P G GA SPG μ      U  R   generated at steps    prompts per iteration S, stride
    4 2 2  2   1      4  2   0, 1, 2, 3 …          4, 1
    4 2 2  1   1      2  1   0, 0, 1, 1, 2, 2 …    4, 1
    4 2 2  4   1      8  4   0, 2, 4 …             8, 2
    4 2 2  2   2      4  4   0, 2, 4 …             4, 2
    4 2 2  2   1 W=2  8  2   0, 1, 2, 3 …          8, 1   rank 0 has rows 0-3 of generation 0, rank 1 rows 4-7
    2 4 1  1   1 W=2  1  1   0, 1, 2, 3 …          1, 1   one group, half of it on each rank
    3 2 2  2   1      3  2   0, 1, 2, 3 …          3, 1   P is not a multiple of G
    4 2 3  2   1      4  2   0, 0, 1, 2, 2, 3 …    refused
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple

from posttrain.errors import ConfigError


class Place(NamedTuple):
    """Where the dataserver keeps a row: what `/sample` calls `iteration` and `offset`."""

    iteration: int
    slot: int


@dataclass(frozen=True)
class Clock:
    """Six numbers that decide everything; their letters are those of this module's text.

    Raises:
        ConfigError: TRL refuses these numbers, or optimizer steps would differ in their number of prompts.
    """

    micro_batch_size: int
    """P, completions per device and micro-step."""

    processes: int
    """W."""

    generations: int
    """G, completions per prompt."""

    accumulation_steps: int
    """GA, micro-steps per optimizer step."""

    steps_per_generation: int
    """SPG, micro-steps that go once through what was generated."""

    iterations: int
    """μ, how often it is gone through."""

    def __post_init__(self) -> None:
        _require_positive(
            {
                "training.micro_batch_size": self.micro_batch_size,
                "number of processes": self.processes,
                "rollout.generations": self.generations,
                "training.rows_per_step, in micro-batches": self.accumulation_steps,
                "rollout.steps_per_generation": self.steps_per_generation,
                "rollout.iterations": self.iterations,
            }
        )
        self._require_groups()
        self._require_even_steps()

    @classmethod
    def of_step(
        cls,
        rows_per_step: int,
        micro_batch_size: int,
        processes: int,
        generations: int,
        *,
        steps_per_generation: int | None = None,
        iterations: int = 1,
    ) -> "Clock":
        """The clock of steps of `rows_per_step` = P·W·GA completions; SPG is GA unless given, as in TRL.

        Raises:
            ConfigError: as the class, or the step does not divide into micro-batches over the processes.
        """
        _require_positive({"training.micro_batch_size": micro_batch_size, "number of processes": processes})
        at_once = micro_batch_size * processes
        if rows_per_step < 1 or rows_per_step % at_once:
            raise ConfigError(
                f"training.rows_per_step: {rows_per_step} is not a multiple of training.micro_batch_size "
                f"{micro_batch_size} × {_processes(processes)}; choose a multiple of {at_once}"
            )
        accumulation_steps = rows_per_step // at_once
        if steps_per_generation is None:
            steps_per_generation = accumulation_steps
        return cls(micro_batch_size, processes, generations, accumulation_steps, steps_per_generation, iterations)

    @property
    def rows_per_step(self) -> int:
        """P·W·GA, the completions of one optimizer step over all ranks."""
        return self.micro_batch_size * self.processes * self.accumulation_steps

    @property
    def completions_per_generation(self) -> int:
        """P·W·SPG, over all ranks."""
        return self.micro_batch_size * self.processes * self.steps_per_generation

    @property
    def prompts_per_generation(self) -> int:
        """U = P·W·SPG/G, the different prompts of one generation over all ranks."""
        return self.completions_per_generation // self.generations

    @property
    def micro_steps_per_generation(self) -> int:
        """R = SPG·μ, the micro-steps that one generation serves."""
        return self.steps_per_generation * self.iterations

    @property
    def prompts_per_iteration(self) -> int:
        """S, the prompts that are generated for in an optimizer step that generates: U·GA/R where R ≤ GA, else U."""
        return self.prompts_per_generation * max(1, self.accumulation_steps // self.micro_steps_per_generation)

    @property
    def iteration_stride(self) -> int:
        """Optimizer steps from one that generates to the next: R/GA where R > GA, else 1."""
        return max(1, self.micro_steps_per_generation // self.accumulation_steps)

    def generation_of(self, row: int) -> int:
        """The generation g = ⌊row/U⌋ that takes a row."""
        return row // self.prompts_per_generation

    def iteration_of(self, generation: int) -> int:
        """The optimizer step ⌊g·R/GA⌋ that makes a generation, from 0."""
        return generation * self.micro_steps_per_generation // self.accumulation_steps

    def place(self, row: int) -> Place:
        """The iteration that a row is generated in, and its slot among the iteration's S.

        With g0 = ⌈iteration·GA/R⌉ the first generation of the iteration, slot = (g − g0)·U + row mod U.
        """
        generation = self.generation_of(row)
        iteration = self.iteration_of(generation)
        return Place(iteration, row - self.first_row_at(iteration))

    def first_row_at(self, step: int) -> int:
        """The first row that is generated at optimizer step `step` or later: ⌈step·GA/R⌉·U."""
        generation = -(-step * self.accumulation_steps // self.micro_steps_per_generation)
        return generation * self.prompts_per_generation

    def generation_starts(self, step: int) -> range:
        """The first row of each generation that optimizer step `step`, counted from 0, begins with."""
        return range(self.first_row_at(step), self.first_row_at(step + 1), self.prompts_per_generation)

    def rows_needed(self, max_steps: int) -> int:
        """How many rows `max_steps` optimizer steps take; with fewer TRL begins again at row 0."""
        return self.first_row_at(max_steps)

    def is_aligned(self, step: int) -> bool:
        """Whether step `step` begins with a generation: R divides step·GA. Only there can a run be resumed."""
        return step % self.iteration_stride == 0

    def nearest_aligned(self, step: int) -> tuple[int, int]:
        """The last aligned step that is not after `step`, and the aligned one after that."""
        below = step - step % self.iteration_stride
        return below, below + self.iteration_stride

    def require_aligned(self, every: int, key: str) -> None:
        """Raise ConfigError unless all multiples of `every`, the value of config key `key`, are aligned."""
        if not self.is_aligned(every):
            raise ConfigError(
                f"{key}: {every} falls into the middle of a generation, which serves {self.iteration_stride} optimizer "
                f"steps ({self._reuse()}); choose a multiple of {self.iteration_stride}"
            )

    def require_resumable(self, step: int) -> None:
        """Raise ConfigError unless a checkpoint of `step` finished steps can be resumed.

        TRL would generate for prompts that were trained on already, and stay behind the curriculum from there on.
        """
        if not self.is_aligned(step):
            below, above = self.nearest_aligned(step)
            raise ConfigError(
                f"the checkpoint of step {step} lies in the middle of a generation, which serves "
                f"{self.iteration_stride} optimizer steps ({self._reuse()}); resume from one of step {below} or {above}"
            )

    def require_same_shape(self, prompts_per_iteration: int, iteration_stride: int) -> None:
        """Raise ConfigError unless these numbers of the dataserver's `/meta` are those of this clock."""
        if (prompts_per_iteration, iteration_stride) == (self.prompts_per_iteration, self.iteration_stride):
            return
        raise ConfigError(
            f"the dataserver's prompts_per_iteration: {prompts_per_iteration} and iteration_stride: {iteration_stride} "
            f"do not fit this training: {self._shape()}. In the dataserver's config set prompts_per_iteration: "
            f"{self.prompts_per_iteration} and iteration_stride: {self.iteration_stride}, or change training and "
            "rollout here"
        )

    def _require_groups(self) -> None:
        completions = self.completions_per_generation
        if self.generations < 2:
            raise ConfigError(
                f"rollout.generations: {self.generations} leaves a completion nothing to be judged against; at least 2"
            )
        if completions % self.generations:
            # The least SPG with which P·W·SPG is a multiple of G; every multiple of it is one too.
            step = self.generations // gcd(self.generations, self.micro_batch_size * self.processes)
            raise ConfigError(
                f"rollout.generations: {self.generations} does not divide the {completions} completions of one "
                f"generation (training.micro_batch_size {self.micro_batch_size} × {_processes(self.processes)} × "
                f"{self.steps_per_generation} steps per generation); choose a number that does, or make "
                f"rollout.steps_per_generation a multiple of {step}"
            )

    def _require_even_steps(self) -> None:
        served, step = self.micro_steps_per_generation, self.accumulation_steps
        if served % step and step % served:
            raise ConfigError(
                f"rollout.steps_per_generation: {self.steps_per_generation} × rollout.iterations {self.iterations} = "
                f"{served} micro-batches do not fit the {step} of an optimizer step (training.rows_per_step "
                f"{self.rows_per_step} in micro-batches of {self.micro_batch_size} × {_processes(self.processes)}): "
                "steps would differ in their number of prompts; choose a product that divides "
                f"{step} or is a multiple of it"
            )

    def _reuse(self) -> str:
        return (
            f"rollout.steps_per_generation {self.steps_per_generation} × rollout.iterations {self.iterations}, "
            f"with {self.accumulation_steps} micro-batches in a step"
        )

    def _shape(self) -> str:
        if self.iteration_stride > 1:
            return (
                f"{self.completions_per_generation} completions of one generation, {self.generations} for each prompt, "
                f"serve {self.iteration_stride} optimizer steps"
            )
        passes = f", each trained on {self.iterations} times" if self.iterations > 1 else ""
        return f"training.rows_per_step {self.rows_per_step}, {self.generations} completions for each prompt{passes}"


def require_within_curriculum(max_steps: int, total_iterations: int, *, beyond_last_stage: bool = False) -> None:
    """Raise ConfigError where training goes on after the dataserver's `total_iterations`, unless that is wanted."""
    if max_steps > total_iterations and not beyond_last_stage:
        raise ConfigError(
            f"training.max_steps: {max_steps} is beyond the dataserver's last stage, which ends at {total_iterations}; "
            "lower it, lengthen the stage, or set dataserver.beyond_last_stage: true to go on with that stage's mix"
        )


def _require_positive(numbers: Mapping[str, int]) -> None:
    for key, number in numbers.items():
        if number < 1:
            raise ConfigError(f"{key}: {number} is too few; at least 1")


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"
