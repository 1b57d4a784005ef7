"""Completions for TRL: its `rollout_func`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.base.processes import process_rank
from posttrain.errors import RunError, ServerError
from posttrain.inference.engine import Completion, GenerationRequest, Sampling, StopReason
from posttrain.inference.seeds import derive_seed
from posttrain.inference.text import completion_text
from posttrain.rl.client.outages import Outage
from posttrain.rl.clock import Clock
from posttrain.rl.rollout.engines import RolloutEngine
from posttrain.rl.rollout.prompts import Prompt, PromptSource
from posttrain.train.ranks import any_rank


@dataclass
class Timer:
    """Seconds of one optimizer step, by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, begin: float) -> None:
        """Count the time since `begin`, as `time.perf_counter` told it."""
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin


@dataclass(frozen=True)
class _Place:
    """Which completion an entry of TRL's batch is: the `sample`-th of the prompt in `slot` of its generation."""

    slot: int
    sample: int


class Rollouts:
    """Completes the prompts of the generation that TRL asks for.

    TRL's rows are nothing but their own numbers: what a row asks is looked up when its completions are wanted, so
    that no data loader can run ahead of the clock.
    """

    def __init__(
        self,
        clock: Clock,
        prompts: PromptSource,
        engine: RolloutEngine,
        tokenizer: Any,
        sampling: Sampling,
        seed: int,
        timer: Timer,
    ) -> None:
        self._clock = clock
        self._prompts = prompts
        self._engine = engine
        self._tokenizer = tokenizer
        self._sampling = sampling
        self._seed = seed
        self._timer = timer

    def __call__(self, rows: list[str], trainer: Any) -> dict[str, Any]:
        """One completion for each entry of this rank's part of the batch, in which each row stands G times.

        Returns:
            What TRL wants (`prompt_ids`, `completion_ids`, `logprobs`), and columns for the reward function.

        Raises:
            RunError: the rows are not those of the optimizer step that is being collected.
            Outage: the dataserver cannot be asked for the prompts.
        """
        generation = self._clock.generation_of(int(rows[0]))
        self._require_step(generation, trainer.state.global_step)
        begin = time.perf_counter()
        self._engine.update(trainer.state.global_step)
        self._timer.add("sync", begin)
        prompts = self._asked(generation)
        places = self._places(rows, generation)
        begin = time.perf_counter()
        completions = self._complete(generation, prompts, places)
        self._timer.add("generate", begin)
        return self._columns(generation, [prompts[place.slot] for place in places], completions)

    def _require_step(self, generation: int, step: int) -> None:
        iteration = self._clock.iteration_of(generation)
        if iteration != step:
            raise RunError(
                f"the clock is off: the trainer collects completions for step {step}, and the prompts are those of "
                f"iteration {iteration}; nothing was trained on them"
            )

    def _asked(self, generation: int) -> Sequence[Prompt]:
        prompts: Sequence[Prompt] = ()
        failure: ServerError | None = None
        try:
            prompts = self._prompts.of_generation(generation)
        except ServerError as error:
            failure = error
        if any_rank(failure is not None):
            raise Outage(str(failure) if failure else "another process could not ask for its prompts")
        return prompts

    def _places(self, rows: Sequence[str], generation: int) -> list[_Place]:
        """By the entries' positions in the whole batch, of which each rank has an equal piece."""
        group, size = self._clock.generations, self._clock.prompts_per_generation
        first = process_rank() * len(rows)
        places = [_Place((first + entry) // group, (first + entry) % group) for entry in range(len(rows))]
        if [int(row) for row in rows] != [generation * size + place.slot for place in places]:
            raise RunError("the trainer asks for rows in another order than its sampler gives them")
        return places

    def _complete(
        self, generation: int, prompts: Sequence[Prompt], places: Sequence[_Place]
    ) -> list[Completion | None]:
        """One per place; None for a prompt that is too long."""
        wanted: dict[int, list[_Place]] = {}
        for place in places:
            if not prompts[place.slot].is_too_long:
                wanted.setdefault(place.slot, []).append(place)
        requests = [
            GenerationRequest(
                prompts[slot].ids,
                tuple(derive_seed(self._seed, generation, slot, place.sample) for place in same_prompt),
            )
            for slot, same_prompt in wanted.items()
        ]
        made = self._engine.complete(requests, self._sampling) if requests else {}
        by_place = {
            place: made[position, number]
            for position, same_prompt in enumerate(wanted.values())
            for number, place in enumerate(same_prompt)
        }
        return [by_place.get(place) for place in places]

    def _columns(
        self, generation: int, prompts: Sequence[Prompt], completions: Sequence[Completion | None]
    ) -> dict[str, Any]:
        # A prompt without completion stands in the batch all the same: one token, which has no reward.
        empty = Completion((self._tokenizer.eos_token_id,), StopReason.END, (0.0,))
        filled = [completion or empty for completion in completions]
        return {
            "prompt_ids": [list(prompt.ids[-1:] if prompt.is_too_long else prompt.ids) for prompt in prompts],
            "completion_ids": [list(completion.token_ids) for completion in filled],
            "logprobs": [list(each.logprobs or ()) for each in filled] if self._sampling.logprobs else None,
            # By its name TRL leaves tokens out of the loss, of which the KL divergence is a part.
            "env_mask": _loss_mask(prompts, filled),
            "text": [completion_text(self._tokenizer, each, self._sampling.stop) for each in filled],
            "truncated": [completion.stop_reason is StopReason.LENGTH for completion in filled],
            "asked": list(prompts),
            "generation": [generation] * len(prompts),
        }


def _loss_mask(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> list[list[int]] | None:
    """0 for the tokens that stand for no completion; None where there are no such."""
    if not any(prompt.is_too_long for prompt in prompts):
        return None
    return [
        [int(not prompt.is_too_long)] * len(completion.token_ids)
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
