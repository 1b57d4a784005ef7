"""Choose which groups of an iteration are trained, and which substitutes to ask for the rejected ones.

All of it is a function of the filters' verdicts: neither the order in which groups were finished nor the rounds in
which they were asked make a difference.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal, NamedTuple

from posttrain.base.chance import chance


class Place(NamedTuple):
    """Identifies a group of an iteration; places sort by attempt, then by slot.

    Attributes:
        attempt: 0 for the row that the curriculum asks in this slot, n for its n-th substitute.
        slot: from 0.
    """

    attempt: int
    slot: int


Verdicts = Mapping[Place, bool]
"""Whether the filters accept each group that was asked."""


@dataclass(frozen=True)
class Selection:
    """The groups that an iteration trains.

    Attributes:
        trained: the group for each slot, in slot order; None leaves the slot empty, or to a replayed group.
        unused: accepted groups that no slot needs, in the order of their places.
        accepted: how many slots have a group that the filters accept.
    """

    trained: tuple[Place | None, ...]
    unused: tuple[Place, ...]
    accepted: int


def select(
    datasets: Sequence[str],
    verdicts: Verdicts,
    rejected: Literal["keep", "substitute", "drop"],
    replayed: Collection[int] = (),
) -> Selection:
    """The groups that are trained, if no more substitutes are asked.

    A slot trains its own group if that was accepted. The other slots take accepted spares and substitutes of the same
    data set, slots and groups each in their order, every group once. A slot that finds none is left empty by `drop`,
    and otherwise trains its own group as it is.

    Args:
        datasets: the data set of each slot; a slot's substitutes are rows of the same one.
        verdicts: of all groups so far; every slot's own group is among them, except where nothing was generated.
        replayed: slots that train a group of an earlier step.
    """
    filled = _filled(datasets, verdicts, replayed)
    trained = tuple(
        filled.get(slot, None if rejected == "drop" or slot in replayed else Place(0, slot))
        for slot, _ in enumerate(datasets)
    )
    accepted = sorted(place for place, is_accepted in verdicts.items() if is_accepted)
    used = set(filled.values())
    return Selection(trained, tuple(place for place in accepted if place not in used), len(filled))


def next_round(
    datasets: Sequence[str], verdicts: Verdicts, attempts: int, replayed: Collection[int] = ()
) -> tuple[Place, ...]:
    """The substitutes to ask next, in the order of their places; none if every slot is filled or has had its attempts.

    Args:
        datasets, verdicts, replayed: as for `select`. Spares count as attempts of their slots.
        attempts: substitutes per slot at most.
    """
    filled = _filled(datasets, verdicts, replayed)
    asked = {place.slot: place.attempt for place in sorted(verdicts)}
    left = (slot for slot, _ in enumerate(datasets) if slot not in filled and slot not in replayed)
    needed = (Place(asked[slot] + 1, slot) for slot in left)
    return tuple(sorted(place for place in needed if place.attempt <= attempts))


def spares(seed: int, iteration: int, datasets: Sequence[str], over_sampling: float) -> tuple[Place, ...]:
    """The spare groups that an iteration asks together with its own: first substitutes of some slots of each data set.

    There are ⌈(over_sampling − 1)·n⌉ for a data set with n slots, those whose hash is the smallest.

    Args:
        seed: the run's seed.
        datasets: the data set of each slot.
        over_sampling: from 1, for no spares, to 2, for one spare in each slot.
    """
    more = Fraction(str(over_sampling)) - 1
    left = {dataset: ceil(more * count) for dataset, count in Counter(datasets).items()}
    chosen = []
    for slot in sorted(range(len(datasets)), key=lambda slot: (chance(seed, "spare", iteration, slot), slot)):
        if left[datasets[slot]]:
            left[datasets[slot]] -= 1
            chosen.append(Place(1, slot))
    return tuple(sorted(chosen))


def _filled(datasets: Sequence[str], verdicts: Verdicts, replayed: Collection[int]) -> dict[int, Place]:
    """The accepted group of each slot that has one."""
    slots = [slot for slot, _ in enumerate(datasets) if slot not in replayed]
    filled = {slot: Place(0, slot) for slot in slots if verdicts[Place(0, slot)]}
    others: dict[str, list[Place]] = {}
    for place in sorted(verdicts, reverse=True):
        if place.attempt and verdicts[place]:
            others.setdefault(datasets[place.slot], []).append(place)
    for slot in slots:
        if slot not in filled and others.get(datasets[slot]):
            filled[slot] = others[datasets[slot]].pop()
    return filled
