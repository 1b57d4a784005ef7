"""Choose the stored groups that fill slots, as a pure function of the state, the seed and the iteration."""

import math
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Literal

from posttrain.base.chance import chance
from posttrain.config.schedule import Schedule
from posttrain.rl.rollout.replay.config import RolloutReplayConfig
from posttrain.rl.rollout.replay.store import Entry, State


def wanted_groups(config: RolloutReplayConfig, seed: int, iteration: int, groups: int) -> int:
    """⌊share·groups + u⌋ with u = chance(seed, "replay", iteration): share·groups on average, at most `groups`."""
    points = config.share if isinstance(config.share, Mapping) else {0: config.share}
    share = Schedule(points).at(iteration)
    return math.floor(share * groups + Fraction(chance(seed, "replay", iteration)))


def is_usable(
    entry: Entry, config: RolloutReplayConfig, iteration: int, graded_by: Mapping[str, str], stride: int = 1
) -> bool:
    """Whether a stored group may be trained in the `stride` steps from `iteration` on: by age, uses and graders."""
    youngest, oldest = iteration - entry.version, iteration + stride - 1 - entry.version
    is_young = youngest > 0 and oldest <= config.max_age
    return is_young and entry.uses < config.max_uses and graded_by.get(entry.dataset) == entry.graded_by


def preferred_groups(
    state: State,
    config: RolloutReplayConfig,
    seed: int,
    iteration: int,
    wanted: int,
    graded_by: Mapping[str, str],
    stride: int = 1,
) -> list[Entry]:
    """The stored groups that may fill slots of an iteration: of each data set at most `wanted`, the preferred first.

    Args:
        graded_by: for each data set that may be asked, what identifies its present graders; see `Entry`.
        stride: optimizer steps that train the iteration.
    """
    preferred = _ORDERS[config.choose]
    found: list[Entry] = []
    for dataset in sorted(graded_by):
        usable = (
            entry
            for entry in state.values()
            if entry.dataset == dataset and not entry.is_held and is_usable(entry, config, iteration, graded_by, stride)
        )
        found += preferred(usable, lambda entry: chance(seed, "replay group", iteration, *entry.key))[:wanted]
    return found


Luck = Callable[[Entry], float]


def _recent(entries: Iterable[Entry], luck: Luck) -> list[Entry]:
    return sorted(entries, key=lambda entry: (-entry.version, luck(entry), entry.key))


def _uniform(entries: Iterable[Entry], luck: Luck) -> list[Entry]:
    return sorted(entries, key=lambda entry: (luck(entry), entry.key))


def _spread(entries: Iterable[Entry], luck: Luck) -> list[Entry]:
    """In the order of draws without replacement, with weights 4p(1 − p); groups of weight 0 are left out.

    Source: Efraimidis and Spirakis, "Weighted random sampling with a reservoir", Information Processing Letters 97
    (2006): the smallest −log(u) / weight are drawn first.
    """
    keyed = []
    for entry in entries:
        p = min(1.0, max(0.0, entry.mean_reward))
        if weight := 4 * p * (1 - p):
            keyed.append((-math.log1p(-luck(entry)) / weight, entry.key, entry))
    return [entry for *_, entry in sorted(keyed, key=lambda keys: keys[:2])]


_ORDERS: dict[Literal["spread", "recent", "uniform"], Callable[[Iterable[Entry], Luck], list[Entry]]] = {
    "spread": _spread,
    "recent": _recent,
    "uniform": _uniform,
}
