"""Complete a few prompts of the curriculum as training would, and grade them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from posttrain.conversation.encoder import conversation_encoder
from posttrain.dataserver.schemas import Meta, Sample, Split
from posttrain.errors import ConfigError
from posttrain.inference.engine import RolloutEngine, Sampling, derive_seed
from posttrain.inference.load import end_ids
from posttrain.inference.loaded import LoadedModelEngine
from posttrain.models.load import choose_backend
from posttrain.rl.config import RLConfig
from posttrain.rl.debug.groups import Group
from posttrain.rl.debug.look import DebugWeights
from posttrain.rl.rollout.engines.open import completed
from posttrain.rl.rollout.grading import GradeSource, grade_all
from posttrain.rl.rollout.rollout import Prompt, PromptSource, Rollout, SampleSource
from posttrain.rl.schedule import RolloutSchedule

# Prompt lengths are measured on about this many prompts from the whole curriculum.
_MEASURED_PROMPTS = 256


class KeptSamples:
    """Hands out another source's samples, and keeps them by id."""

    def __init__(self, samples: SampleSource) -> None:
        self._samples = samples
        self.by_id: dict[str, Sample] = {}

    def sample(self, iteration: int, offset: int, batch_size: int, split: Split = "train") -> list[Sample]:
        """The samples of these slots."""
        samples = self._samples.sample(iteration, offset, batch_size, split)
        self.by_id.update((sample.sample_id, sample) for sample in samples)
        return samples

    def substitutes(self, iteration: int, slots: Sequence[int], attempt: int) -> list[Sample]:
        """Those of the other source."""
        return self._samples.substitutes(iteration, slots, attempt)


@dataclass(frozen=True)
class Asked:
    """A prompt, with the generation and the place in it from which its completions' seeds are derived."""

    iteration: int
    generation: int
    place: int
    prompt: Prompt


def training_prompts(source: PromptSource, schedule: RolloutSchedule, iteration: int, count: int) -> list[Asked]:
    """The first `count` prompts from `iteration` on, continuing into later iterations if it has fewer."""
    generation = schedule.generations_until(iteration)
    asked: list[Asked] = []
    while len(asked) < count:
        prompts = source.of_generation(generation)
        at = schedule.iteration_of(generation)
        asked += [Asked(at, generation, place, prompt) for place, prompt in enumerate(prompts)]
        generation += 1
    return asked[:count]


def prompt_lengths(source: PromptSource, schedule: RolloutSchedule, max_steps: int) -> list[int]:
    """Lengths in tokens of the prompts of generations spread evenly over the run."""
    size = schedule.prompts_per_iteration
    generations = schedule.generations_until(max_steps)
    wanted = min(generations, -(-_MEASURED_PROMPTS // size))
    places = [number * generations // wanted for number in range(wanted)]
    return [len(prompt.ids) for generation in places for prompt in source.of_generation(generation)]


def held_out_prompts(source: PromptSource, meta: Meta, iteration: int, count: int) -> tuple[list[Asked], list[int]]:
    """The first `count` held-out prompts, or all if fewer, to be graded as at `iteration`; and lengths of many of them.

    Raises:
        ConfigError: no rows are held out.
    """
    there = sum(dataset.validation_rows for dataset in meta.datasets)
    if not there:
        raise ConfigError(
            "--held-out: the dataserver holds out no rows; set validation_fraction for a data set in its config"
        )
    prompts = source.held_out(min(there, max(count, _MEASURED_PROMPTS)))
    asked = [Asked(iteration, 0, place, prompt) for place, prompt in enumerate(prompts[:count])]
    return asked, [len(prompt.ids) for prompt in prompts]


def debug_engine(weights: DebugWeights, config: RLConfig) -> LoadedModelEngine:
    """Load the weights into the engine that generates with the training model, in its compute precision.

    Raises:
        ModelError: the model or adapter cannot be loaded, or cannot end a turn.
    """
    chatml = config.chat.template == "chatml"
    loaded = choose_backend(weights.model).load_for_inference(weights.model, weights.adapter, chatml=chatml)
    ends = end_ids(loaded, conversation_encoder(config.chat, loaded.tokenizer))
    return LoadedModelEngine(loaded, ends, config.rollout.batch_size)


def sampled(
    asked: Sequence[Asked], engine: RolloutEngine, tokenizer: Any, config: RLConfig, samples: int
) -> list[list[Rollout]]:
    """`samples` ungraded completions of each prompt, sampled as in training.

    A prompt that is too long gets none.
    """
    groups: list[list[Rollout]] = []
    for sampling, alike in groupby(asked, key=lambda each: config.rollout.at(each.iteration)):
        wanted = [
            []
            if each.prompt.is_too_long
            else [
                (each.prompt, number, derive_seed(config.training.seed, each.generation, each.place, number))
                for number in range(samples)
            ]
            for each in alike
        ]
        flat = [each for of_one in wanted for each in of_one]
        made = iter(completed(engine.complete, flat, tokenizer, Sampling.of(sampling), 0))
        groups += [[next(made) for _ in of_one] for of_one in wanted]
    return groups


def graded(
    asked: Sequence[Asked],
    completions: Sequence[Sequence[Rollout]],
    grades: GradeSource,
    kept: KeptSamples,
) -> list[Group]:
    """The groups with their rewards, each graded as at its own iteration.

    Raises:
        ServerError: the dataserver does not answer, or refuses.
    """
    groups: list[Group] = []
    for iteration, several in groupby(zip(asked, completions, strict=True), key=lambda pair: pair[0].iteration):
        together = list(several)
        flat = [each for _, said in together for each in said]
        results = iter(grade_all(grades, iteration, f"debug-{iteration}", flat))
        groups += [
            Group(iteration, each.prompt, kept.by_id[each.prompt.sample_id], tuple(next(results) for _ in said))
            for each, said in together
        ]
    return groups
