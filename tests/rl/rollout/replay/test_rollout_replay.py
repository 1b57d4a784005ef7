"""Replay never exceeds ages and uses, keeps to the data sets of the slots, and repeats after a resume."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posttrain.rl.rollout.replay.candidates import Candidate, Candidates
from posttrain.rl.rollout.replay.choice import is_usable, preferred_groups, wanted_groups
from posttrain.rl.rollout.replay.store import Entry, GroupKey, State
from posttrain.rl.rollout.selection import Place
from posttrain.rl.rollout.store.files import read_rollouts, write_rollouts
from rl.rollout.replay.replay_cases import (
    GRADERS,
    SLOTS,
    a_config,
    a_group,
    a_replay,
    begun_step,
    trained_step,
)


def a_state(*entries: tuple[float, int], dataset: str = "a", **keys: Any) -> State:
    """Entries with these mean rewards and versions."""
    return {
        (key := GroupKey(number, 0, 0)): Entry(key, "one", dataset, version, mean, GRADERS[dataset], 1, **keys)
        for number, (mean, version) in enumerate(entries)
    }


def chosen(state: State, config: Any, *, iteration: int = 5, wanted: int = 4, seed: int = 0) -> list[int]:
    """The generations of the chosen groups, the preferred first."""
    found = preferred_groups(state, config, seed, iteration, wanted, {"a": GRADERS["a"]})
    return [entry.key.generation for entry in found]


def test_the_most_recent_come_first() -> None:
    state = a_state((0.5, 1), (0.5, 4), (0.5, 3))
    assert chosen(state, a_config(choose="recent"), wanted=2) == [1, 2]


@pytest.mark.parametrize("choose", ["spread", "recent", "uniform"])
def test_only_groups_that_may_be_used_are_chosen(choose: str) -> None:
    config = a_config(choose=choose, max_age=3, max_uses=2)
    assert sorted(chosen(a_state((0.5, 1), (0.5, 2), (0.5, 4), (0.5, 5)), config)) == [1, 2]  # ages 4, 3, 1 and 0
    assert chosen(a_state((0.5, 4), uses=2), config) == []
    assert chosen(a_state((0.5, 4), dataset="b"), config) == []
    assert chosen(a_state((0.5, 4), is_held=True), config) == []
    assert preferred_groups(a_state((0.5, 4)), config, 0, 5, 1, {"a": "other graders"}) == []


def test_a_group_is_young_enough_for_every_step_of_its_generation() -> None:
    config = a_config(max_age=3)
    (entry,) = a_state((0.5, 2)).values()
    assert is_usable(entry, config, 4, GRADERS, stride=2)  # trained in steps 4 and 5, 2 and 3 steps old
    assert not is_usable(entry, config, 4, GRADERS, stride=3)


def test_a_spread_is_drawn_by_its_weight() -> None:
    state = a_state((0.5, 4), (0.9, 4), (1.0, 4), (0.0, 4))  # weights 1, 0.36, 0 and 0
    first = Counter(chosen(state, a_config(), wanted=1, seed=seed)[0] for seed in range(1000))
    # Expected 735 and 265; the standard deviation is 14.
    assert first.keys() == {0, 1}
    assert abs(first[0] - 735) < 56


def test_every_group_has_the_same_chance_if_uniform() -> None:
    state = a_state((0.5, 4), (0.9, 4), (1.0, 1), (0.0, 4))
    first = Counter(chosen(state, a_config(choose="uniform"), wanted=1, seed=seed)[0] for seed in range(1000))
    assert all(abs(first[number] - 250) < 56 for number in range(4))


def test_the_share_is_met_on_average() -> None:
    config = a_config(share={"0": 0, "10": 0.25})
    assert {wanted_groups(config, 0, 0, 8)} == {0}
    assert {wanted_groups(config, seed, 20, 8) for seed in range(50)} == {2}
    some = [wanted_groups(config, seed, 5, 4) for seed in range(1000)]  # 0.125 · 4 = 0.5
    assert set(some) == {0, 1}
    assert abs(sum(some) - 500) < 64


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12), st.integers(0, 3), st.floats(0, 1)), max_size=12),
    st.integers(0, 6),
    st.sampled_from(["spread", "recent", "uniform"]),
    st.randoms(use_true_random=False),
)
def test_a_choice_does_not_depend_on_the_order_of_the_state(
    groups: list[tuple[str, int, int, float]], wanted: int, choose: str, random: Any
) -> None:
    config = a_config(choose=choose, max_age=8, max_uses=2)
    state = {
        (key := GroupKey(number, 0, 0)): Entry(key, "one", dataset, version, mean, GRADERS[dataset], 1, uses)
        for number, (dataset, version, uses, mean) in enumerate(groups)
    }
    found = preferred_groups(state, config, 1, 10, wanted, GRADERS)
    assert all(count <= wanted for count in Counter(entry.dataset for entry in found).values())
    assert len({entry.key for entry in found}) == len(found)
    assert all(0 < 10 - entry.version <= 8 and entry.uses < 2 for entry in found)
    entries = list(state.items())
    random.shuffle(entries)
    assert preferred_groups(dict(entries), config, 1, 10, wanted, GRADERS) == found


def some_candidates(*datasets: str, wanted: int, is_reserved: bool = True) -> Candidates:
    """A candidate of each of these data sets, from generations 0, 1, 2 …"""
    groups = [
        Candidate(GroupKey(number, 0, 0), 0, tuple(a_group([0, 1], dataset=dataset)))
        for number, dataset in enumerate(datasets)
    ]
    return Candidates(0, 7, wanted, is_reserved, tuple(groups))


@given(st.lists(st.sampled_from("ab"), max_size=8), st.lists(st.sampled_from("ab"), max_size=6), st.integers(0, 8))
def test_slots_get_groups_of_their_own_data_set_the_preferred_first(
    slots: list[str], datasets: list[str], wanted: int
) -> None:
    placed = some_candidates(*datasets, wanted=wanted).displaced(slots)
    assert all(each.dataset == slots[slot] for slot, each in placed.items())
    possible = sum(min(slots.count(name), datasets.count(name)) for name in "ab")
    assert len(placed) == len({each.key for each in placed.values()}) == min(wanted, possible)
    for name in "ab":
        taken = sorted(each.key.generation for each in placed.values() if each.dataset == name)
        assert taken == [number for number, dataset in enumerate(datasets) if dataset == name][: len(taken)]


def test_candidates_fill_reserved_slots_or_those_of_rejected_groups() -> None:
    reserved, rejected = (some_candidates("a", "a", wanted=2, is_reserved=each) for each in (True, False))
    assert len(reserved.displaced("aab")) == 2
    assert reserved.in_place_of("aab", [0]) == {}
    assert rejected.displaced("aab") == {}
    assert rejected.in_place_of("aab", [1, 2]) == {1: rejected.groups[0]}


def test_candidates_are_read_as_they_were_written(tmp_path: Path) -> None:
    candidates = some_candidates("a", "b", wanted=1)
    write_rollouts(tmp_path, "some", *candidates.rollouts_and_facts())
    again = Candidates.of_rollouts_and_facts(*read_rollouts(tmp_path, "some"))
    assert [each.key for each in again.groups] == [each.key for each in candidates.groups]
    assert again.displaced("bab").keys() == candidates.displaced("bab").keys()
    assert [each.ids.tolist() for each in again.groups[1].rollouts] == [[7, 0], [7, 1]]


STEPS = 9


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["spread", "recent", "uniform"]),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(1, 3),
    st.integers(1, STEPS - 1),
    st.data(),
)
def test_a_resumed_run_replays_the_same_groups_and_no_group_too_often_or_too_late(
    tmp_path_factory: pytest.TempPathFactory,
    choose: str,
    staleness: int,
    more_age: int,
    max_uses: int,
    killed: int,
    data: Any,
) -> None:
    max_age = 2 * staleness + 1 + more_age  # the smallest that can be met, or more
    keys = {"choose": choose, "max_age": max_age, "max_uses": max_uses}
    folder = tmp_path_factory.mktemp("runs")
    whole, held = a_replay(folder / "whole", **keys), {}
    trace = [trained_step(whole, step, (), held, staleness) for step in range(STEPS)]
    assert any(trace)
    uses = Counter(key for step in trace for key in step.values())
    assert max(uses.values()) <= max_uses
    for step, found in enumerate(trace):
        assert len(found) <= 3  # ⌊0.5 · 4 + u⌋
        for slot, key in found.items():
            assert 0 < step - max(0, key.generation - staleness) <= max_age
            assert SLOTS[slot] == SLOTS[key.slot]

    # Killed in step `killed`, and resumed from an earlier checkpoint, which has what its generations may replay.
    other, held = a_replay(folder / "other", **keys), {}
    checkpoint, saved = data.draw(st.integers(max(0, killed - 6), killed)), {}
    for step in range(killed + 1):
        if step == checkpoint:
            saved = dict(held)
        trained_step(other, step, [checkpoint], held, staleness)
    other.close()
    again = a_replay(folder / "other", **keys)
    again.rewind(checkpoint)
    rest = [trained_step(again, step, [checkpoint], saved, staleness) for step in range(checkpoint, STEPS)]
    assert rest == trace[checkpoint:]
    assert again.stored.state(STEPS) == whole.stored.state(STEPS)


@pytest.mark.parametrize("staleness", [0, 1])
def test_what_a_generation_may_replay_depends_on_the_steps_before_it_was_begun_alone(
    tmp_path: Path, staleness: int
) -> None:
    # The second run stores nothing in the step in which the generation is begun, nor later.
    begun, held = 4, [{}, {}]
    replays = [a_replay(tmp_path / name, max_age=8) for name in ("one", "other")]
    for replay, mine in zip(replays, held, strict=True):
        for step in range(begun):
            trained_step(replay, step, (), mine, staleness)
        begun_step(replay, begun, mine, staleness)
    replays[0].store(begun, begun, {Place(0, 0): a_group([0, 1], version=begun - staleness)}, GRADERS)
    one, other = (mine[begun + staleness] for mine in held)
    assert [each.key for each in one.groups] == [each.key for each in other.groups] != []


def test_a_group_is_held_by_one_generation_at_once_and_free_again_if_that_does_not_use_it(tmp_path: Path) -> None:
    replay = a_replay(tmp_path, share=0.9, fill="rejected", max_uses=1)
    (key,) = replay.store(0, 0, {Place(0, 0): a_group([0, 1])}, GRADERS)
    first = replay.hold(1, 1, 8, GRADERS)
    assert [each.key for each in first.groups] == [key]
    assert replay.evict(1, 3, {}, []) == []  # its graders are gone, but a generation still needs it
    assert replay.hold(2, 2, 8, GRADERS).groups == ()
    replay.settle(2, first, set())
    again = replay.hold(3, 3, 8, GRADERS)
    assert [(each.key, each.uses) for each in again.groups] == [(key, 0)]
    replay.settle(3, again, {key})
    assert replay.stored.state(4)[key].uses == 1
    assert replay.evict(3, 4, GRADERS, []) == [key]


def test_groups_whose_rewards_are_equal_are_not_stored(tmp_path: Path) -> None:
    groups = {Place(0, 0): a_group([1, 1]), Place(0, 1): a_group([0, 1]), Place(0, 2): a_group([None, 1])}
    assert a_replay(tmp_path).store(0, 0, groups, GRADERS) == [GroupKey(0, 1, 0)]


def test_a_group_is_given_up_for_its_masked_tokens_or_other_graders(tmp_path: Path) -> None:
    replay = a_replay(tmp_path)
    groups = {Place(0, slot): a_group([0, 1]) for slot in range(3)}
    groups[Place(0, 2)] = a_group([0, 1], dataset="b")
    first, second, third = replay.store(0, 0, groups, GRADERS)
    assert replay.evict(0, 1, GRADERS, [], {first: 0.5}) == []  # not more than half
    assert replay.evict(1, 2, GRADERS, [], {first: 0.51}) == [first]
    assert replay.evict(2, 3, {**GRADERS, "b": "changed"}, []) == [third]
    assert replay.evict(3, 4, {"b": "changed"}, []) == [second]  # no later step asks its data set
    assert not list(tmp_path.glob("g*"))


def test_the_oldest_are_given_up_beyond_the_size_and_it_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replay = a_replay(tmp_path)
    for step in range(4):
        replay.store(step, step, {Place(0, 0): a_group([0, 1], version=step)}, GRADERS)
    replay = a_replay(tmp_path, max_bytes=5 * replay.stored.state(4)[GroupKey(3, 0, 0)].size // 2)
    with caplog.at_level(logging.WARNING):
        assert replay.evict(3, 4, GRADERS, []) == [GroupKey(0, 0, 0), GroupKey(1, 0, 0)]
        replay.store(4, 4, {Place(0, 0): a_group([0, 1], version=4)}, GRADERS)
        assert replay.evict(4, 5, GRADERS, []) == [GroupKey(2, 0, 0)]
    assert [each for each in caplog.messages if "max_bytes" in each] == caplog.messages
    assert len(caplog.messages) == 1
