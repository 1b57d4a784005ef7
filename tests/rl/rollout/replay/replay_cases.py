"""Groups to store, and a run that replays them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from posttrain.base.chance import chance
from posttrain.rl.rollout.replay.candidates import Candidates
from posttrain.rl.rollout.replay.config import RolloutReplayConfig
from posttrain.rl.rollout.replay.replay import Replay
from posttrain.rl.rollout.replay.store import GroupKey
from posttrain.rl.rollout.rollout import Prompt, Rollout
from posttrain.rl.rollout.selection import Place
from posttrain.rl.schedule import RolloutSchedule
from rl.written_rollouts import a_rollout

GRADERS = {"a": "graders of a", "b": "graders of b"}


def a_group(
    rewards: Iterable[float | None], *, version: int = 0, dataset: str = "a", sample_id: str = "one"
) -> list[Rollout]:
    """A group with these rewards, and log-probabilities."""
    prompt = Prompt(sample_id, dataset, 0, (5, 6), "prompt", False)
    return [
        a_rollout(prompt, sample, [7, sample], reward, logprobs=[-0.5, -1.0], versions=version)
        for sample, reward in enumerate(rewards)
    ]


def a_config(**keys: Any) -> RolloutReplayConfig:
    return RolloutReplayConfig.model_validate({"share": 0.5, "fill": "reserved", **keys})


SLOTS = ("a", "a", "b", "b")
"""The data set of each slot."""


def begun_step(replay: Replay, step: int, held: dict[int, Candidates], staleness: int = 0) -> None:
    """Begin the generations that are made with the weights after `step` steps; `held`: what each may replay."""
    for generation in RolloutSchedule(8, 2, staleness=staleness).made_with(step):
        if generation not in held:
            held[generation] = replay.hold(step, generation, len(SLOTS), GRADERS)


def trained_step(
    replay: Replay, step: int, kept: Iterable[int], held: dict[int, Candidates], staleness: int = 0
) -> dict[int, GroupKey]:
    """One optimizer step of a run: what it replays is a function of the step and of what was stored."""
    begun_step(replay, step, held, staleness)
    candidates = held.pop(step)
    chosen = {slot: each.key for slot, each in candidates.displaced(SLOTS).items()}
    assert all(len(each.rollouts) == 2 for each in candidates.groups)
    replay.settle(step, candidates, set(chosen.values()))
    version = max(0, step - staleness)
    new = {
        Place(0, slot): a_group([0, chance("solved", step, slot) < 0.7], version=version, dataset=dataset)
        for slot, dataset in enumerate(SLOTS)
        if slot not in chosen
    }
    replay.store(step, step, new, GRADERS)
    masked = {key: chance("masked", step, *key) for key in chosen.values()}
    replay.evict(step, step + 1 + staleness, GRADERS, kept, masked)
    return chosen


def a_replay(folder: Path, **keys: Any) -> Replay:
    return Replay(a_config(**keys), 0, folder)
