"""Which groups are trained depends on the verdicts alone: not on their order, nor on the rounds they came in."""

from collections import Counter
from fractions import Fraction
from math import ceil
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.rl.rollout.selection import Place, next_round, select, spares

Rejected = Literal["keep", "substitute", "drop"]

DATASETS = st.lists(st.sampled_from("ab"), min_size=1, max_size=8)


def base(verdicts: str) -> dict[Place, bool]:
    """The verdicts on the slots' own groups: + is accepted."""
    return {Place(0, slot): verdict == "+" for slot, verdict in enumerate(verdicts)}


@st.composite
def judged(draw: Any) -> tuple[list[str], dict[Place, bool]]:
    """Slots with the verdicts of their own groups and of some substitutes, in any order."""
    datasets = draw(DATASETS)
    asked = draw(st.lists(st.integers(0, 3), min_size=len(datasets), max_size=len(datasets)))
    places = [Place(attempt, slot) for slot, last in enumerate(asked) for attempt in range(last + 1)]
    return datasets, {place: draw(st.booleans()) for place in draw(st.permutations(places))}


def test_an_accepted_group_is_trained_in_its_own_slot() -> None:
    found = select("aab", base("+++"), "substitute")
    assert found.trained == (Place(0, 0), Place(0, 1), Place(0, 2))
    assert (found.unused, found.accepted) == ((), 3)


def test_a_rejected_group_is_replaced_by_the_first_substitute_of_its_data_set() -> None:
    # Slots 1 and 3 are rejected. (1, 0) belongs to another data set; (1, 3) comes before (2, 1).
    verdicts = base("+-+-") | {Place(2, 1): True, Place(1, 1): False, Place(1, 3): True, Place(1, 0): True}
    found = select("abbb", verdicts, "substitute")
    assert found.trained == (Place(0, 0), Place(1, 3), Place(0, 2), Place(2, 1))
    assert (found.unused, found.accepted) == ((Place(1, 0),), 4)


@pytest.mark.parametrize(("rejected", "left"), [("keep", Place(0, 1)), ("substitute", Place(0, 1)), ("drop", None)])
def test_what_has_no_substitute_is_trained_as_it_is_or_dropped(rejected: Rejected, left: Place | None) -> None:
    found = select("ab", base("+-"), rejected)
    assert found.trained == (Place(0, 0), left)
    assert found.accepted == 1


def test_the_next_round_asks_for_the_slots_that_are_left() -> None:
    verdicts = base("+---")
    assert next_round("aaab", verdicts, 2) == (Place(1, 1), Place(1, 2), Place(1, 3))
    verdicts |= {Place(1, 1): False, Place(1, 2): True, Place(1, 3): False}
    # The substitute asked for slot 2 goes to slot 1, so slot 2 is left.
    assert next_round("aaab", verdicts, 2) == (Place(2, 2), Place(2, 3))
    verdicts |= {Place(2, 2): True, Place(2, 3): False}
    assert next_round("aaab", verdicts, 2) == ()
    assert next_round("aaab", verdicts, 3) == (Place(3, 3),)


def test_a_spare_is_a_slot_s_first_attempt() -> None:
    verdicts = base("-+") | {Place(1, 0): False, Place(1, 1): False}
    assert next_round("aa", verdicts, 2) == (Place(2, 0),)


def test_spares_are_rounded_up_for_each_data_set() -> None:
    datasets = ["a"] * 10 + ["b"] * 3
    found = spares(0, 7, datasets, 1.1)
    assert Counter(datasets[place.slot] for place in found) == {"a": 1, "b": 1}  # ⌈1.0⌉ and ⌈0.3⌉
    assert spares(0, 7, datasets, 1.0) == ()
    assert [place.slot for place in spares(0, 7, datasets, 2.0)] == list(range(13))


def test_spares_change_with_the_iteration_and_the_seed() -> None:
    datasets = ["a"] * 64
    drawn = {spares(seed, iteration, datasets, 1.25) for seed in range(3) for iteration in range(3)}
    assert len(drawn) == 9


@given(DATASETS, st.integers(0, 20), st.integers(0, 100))
def test_as_many_spares_as_the_share_says(datasets: list[str], twentieths: int, iteration: int) -> None:
    found = spares(1, iteration, datasets, 1 + twentieths / 20)
    for dataset, count in Counter(datasets).items():
        asked = [place for place in found if datasets[place.slot] == dataset]
        assert len(asked) == len(set(asked)) == ceil(Fraction(twentieths, 20) * count)


@given(judged(), st.sampled_from(["keep", "substitute", "drop"]))
def test_no_group_is_trained_twice_or_in_a_slot_of_another_data_set(
    case: tuple[list[str], dict[Place, bool]], rejected: Rejected
) -> None:
    datasets, verdicts = case
    found = select(datasets, verdicts, rejected)
    trained = [place for place in found.trained if place is not None]
    assert len(found.trained) == len(datasets)
    assert len(trained) == len(set(trained))
    for slot, place in enumerate(found.trained):
        if verdicts[Place(0, slot)]:
            assert place == Place(0, slot)
        elif place is not None:
            assert datasets[place.slot] == datasets[slot]
            assert verdicts[place] or place == Place(0, slot)
    accepted = {place for place, is_accepted in verdicts.items() if is_accepted}
    assert sorted(accepted) == sorted({*trained, *found.unused} & accepted)
    assert not set(trained) & set(found.unused)
    # A group is left over only where no slot of its data set needs one.
    for place in found.unused:
        mine = [slot for slot, dataset in enumerate(datasets) if dataset == datasets[place.slot]]
        assert all(found.trained[slot] in accepted for slot in mine)
    assert found.accepted == len(set(trained) & accepted)


@given(judged(), st.randoms(use_true_random=False), st.integers(1, 4))
def test_the_order_of_the_verdicts_does_not_matter(
    case: tuple[list[str], dict[Place, bool]], random: Any, attempts: int
) -> None:
    datasets, verdicts = case
    shuffled = list(verdicts.items())
    random.shuffle(shuffled)
    assert select(datasets, dict(shuffled), "substitute") == select(datasets, verdicts, "substitute")
    assert next_round(datasets, dict(shuffled), attempts) == next_round(datasets, verdicts, attempts)


@given(DATASETS, st.integers(0, 2**32), st.integers(1, 4), st.sampled_from([1.0, 1.5, 2.0]))
def test_rounds_end_with_every_slot_filled_or_out_of_attempts(
    datasets: list[str], luck: int, attempts: int, over_sampling: float
) -> None:
    def judge(place: Place) -> bool:
        return hash((luck, *place)) % 3 == 0

    asked = [Place(0, slot) for slot in range(len(datasets))] + list(spares(0, 0, datasets, over_sampling))
    verdicts = {place: judge(place) for place in asked}
    rounds = 0
    while wanted := next_round(datasets, verdicts, attempts):
        assert not set(wanted) & verdicts.keys()
        verdicts |= {place: judge(place) for place in wanted}
        rounds += 1
    # Slots may take each other's substitutes, but no slot asks for more than its own share.
    assert rounds <= len(datasets) * attempts
    assert all(place.attempt <= attempts for place in verdicts)
    found = select(datasets, verdicts, "drop")
    for slot, place in enumerate(found.trained):
        assert place is not None or Place(attempts, slot) in verdicts
