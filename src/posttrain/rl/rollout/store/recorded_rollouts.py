"""Train on recorded generations, without prompts, an engine or grades; all checks are made before a model is loaded."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.base.text import first_of
from posttrain.errors import ConfigError
from posttrain.rl.config import RLConfig
from posttrain.rl.rollout.collect.collected import Collected
from posttrain.rl.rollout.replay.candidates import Candidates
from posttrain.rl.rollout.rollout import Rollout, prompts_of
from posttrain.rl.rollout.store.recording import Recording
from posttrain.rl.schedule import RolloutSchedule
from posttrain.train.signals import StopRequest


class RecordedRollouts:
    """Takes the place of a `RolloutPipeline`; every rank reads all of a generation."""

    def __init__(self, recording: Recording, schedule: RolloutSchedule, max_steps: int) -> None:
        self._recording = recording
        self.schedule, self.max_steps = schedule, max_steps
        self.engine_facts: dict[str, Any] = {}
        self.stop = StopRequest()
        """Not asked for: nothing takes long."""

    def publish(self, step: int) -> None:
        """Nothing: no engine makes them."""

    def advance(self, step: int, candidates: Callable[[int, int], Candidates | None]) -> None:
        """Nothing: all are there."""

    def take(self, number: int) -> Collected:
        """Read a generation; DataError if it is damaged."""
        _, rollouts = self._recording.read(number)
        prompts = {id(each.prompt): replace(each.prompt, origin="cached") for each in rollouts}
        found = [replace(each, prompt=prompts[id(each.prompt)]) for each in rollouts]
        return Collected(prompts_of(found), found, {})

    def forget(self, number: int) -> None:
        """Nothing: they stay where they are."""

    def save(self, folder: Path | None, step: int, *, is_ending: bool) -> None:
        """Nothing: they stay where they are."""


def require_recording_fits(
    recording: Recording, config: RLConfig, schedule: RolloutSchedule, max_steps: int, tokenizer: str
) -> None:
    """Read every generation that the steps need, and check that it can be trained on.

    Args:
        tokenizer: digest of the tokenizer of the model to train.

    Raises:
        ConfigError: generations are missing, have another shape, were encoded by another tokenizer, or lack the
            log-probabilities that the importance correction needs.
        DataError: a file is damaged.
    """
    if config.rollout.segment_tokens is not None:
        raise ConfigError("--rollouts-from: recorded completions are whole; leave out rollout.segment_tokens")
    if config.rollout.replay or config.rollout.successes:
        raise ConfigError(
            "--rollouts-from: rollout.replay and successes choose among the rollouts that a run has made itself; leave "
            "them out"
        )
    if recording.tokenizer != tokenizer:
        raise ConfigError(
            f"--rollouts-from: the prompts in {recording.place} were encoded by another tokenizer or chat template "
            "than that of model and chat; set both as in that run"
        )
    needed = range(schedule.generations_until(max_steps))
    if missing := sorted(set(needed) - set(recording.numbers)):
        raise ConfigError(
            f"--rollouts-from: {recording.place} has no record of {first_of([f'generation {n}' for n in missing])}, "
            f"but {max_steps} steps need {len(needed)}, from 0; lower training.max_steps to at most "
            f"{missing[0] * schedule.iteration_stride}, or record the run with rollout.record: true from its start"
        )
    for number in needed:
        iteration, rollouts = recording.read(number)
        _require_shape(recording, number, iteration, rollouts, schedule)
        _require_lengths(recording, number, rollouts, config)
        _require_logprobs(recording, number, rollouts, config)


def _require_shape(
    recording: Recording, number: int, iteration: int, rollouts: Sequence[Rollout], schedule: RolloutSchedule
) -> None:
    sizes = Counter(each.prompt.place for each in rollouts)
    slots = [place.slot for place in sizes if not place.attempt]
    wanted = schedule.iteration_of(number)
    if iteration != wanted:
        raise ConfigError(
            f"--rollouts-from: generation {number} of {recording.place} was asked for step {iteration}, but here it is "
            f"trained from step {wanted}; set rollout.steps_per_generation and rollout.iterations as in that run"
        )
    if slots != list(range(schedule.prompts_per_iteration)) or {*sizes.values()} != {schedule.generations}:
        raise ConfigError(
            f"--rollouts-from: generation {number} of {recording.place} has {len(slots)} prompts with "
            f"{first_of([str(size) for size in sorted({*sizes.values()})])} completions each, but here it takes "
            f"{schedule.prompts_per_iteration} with {schedule.generations}; set training.rows_per_step and "
            "rollout.generations as in that run"
        )


def _require_lengths(recording: Recording, number: int, rollouts: Sequence[Rollout], config: RLConfig) -> None:
    limit, longest = config.rollout.longest, max((each.tokens for each in rollouts), default=0)
    if longest > limit:
        raise ConfigError(
            f"--rollouts-from: generation {number} of {recording.place} has completions of {longest} tokens; raise "
            f"rollout.max_new_tokens, which is {limit}"
        )


def _require_logprobs(recording: Recording, number: int, rollouts: Sequence[Rollout], config: RLConfig) -> None:
    correction = config.rollout.correction
    if not correction.needs_logprobs or all(each.logprobs is not None for each in rollouts if each.tokens):
        return
    key = "ratio: behaviour" if correction.against_behaviour else f"correction: {correction.kind}"
    raise ConfigError(
        f"rollout.importance_{key} needs the probabilities that sampled, but generation {number} of {recording.place} "
        "was recorded without them; set importance_correction: none, or record a run with this correction"
    )
