"""Replay never exceeds ages and uses, keeps to the data sets of the slots, and repeats after a resume."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posttrain.rl.rollout.replay.choice import choose_groups, wanted_groups
from posttrain.rl.rollout.replay.store import Entry, GroupKey, State
from posttrain.rl.rollout.selection import Place
from rl.rollout.replay.replay_cases import GRADERS, SLOTS, a_config, a_group, a_replay, trained_step


def a_state(*entries: tuple[float, int], dataset: str = "a", **keys: Any) -> State:
    """Entries with these mean rewards and versions."""
    return {
        (key := GroupKey(number, 0, 0)): Entry(key, "one", dataset, version, mean, GRADERS[dataset], 1, **keys)
        for number, (mean, version) in enumerate(entries)
    }


def chosen(state: State, config: Any, *, iteration: int = 5, wanted: int = 4, seed: int = 0) -> list[int]:
    """The generations of the chosen groups, if all slots may be filled."""
    found = choose_groups(state, config, seed, iteration, wanted, dict.fromkeys(range(4), "a"), GRADERS)
    return [key.generation for key in found.values()]


def test_the_most_recent_come_first() -> None:
    state = a_state((0.5, 1), (0.5, 4), (0.5, 3))
    assert set(chosen(state, a_config(choose="recent"), wanted=2)) == {1, 2}


@pytest.mark.parametrize("choose", ["spread", "recent", "uniform"])
def test_only_groups_that_may_be_used_are_chosen(choose: str) -> None:
    config = a_config(choose=choose, max_age=3, max_uses=2)
    assert sorted(chosen(a_state((0.5, 1), (0.5, 2), (0.5, 4), (0.5, 5)), config)) == [1, 2]  # ages 4, 3, 1 and 0
    assert chosen(a_state((0.5, 4), uses=2), config) == []
    assert chosen(a_state((0.5, 4), dataset="b"), config) == []
    assert choose_groups(a_state((0.5, 4)), config, 0, 5, 1, {0: "a"}, {"a": "other graders"}) == {}


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
    st.dictionaries(st.integers(0, 9), st.sampled_from("ab"), max_size=6),
    st.integers(0, 6),
    st.sampled_from(["spread", "recent", "uniform"]),
    st.randoms(use_true_random=False),
)
def test_a_choice_depends_on_neither_the_order_of_the_state_nor_of_the_slots(
    groups: list[tuple[str, int, int, float]], slots: dict[int, str], wanted: int, choose: str, random: Any
) -> None:
    config = a_config(choose=choose, max_age=8, max_uses=2)
    state = {
        (key := GroupKey(number, 0, 0)): Entry(key, "one", dataset, version, mean, GRADERS[dataset], 1, uses)
        for number, (dataset, version, uses, mean) in enumerate(groups)
    }
    found = choose_groups(state, config, 1, 10, wanted, slots, GRADERS)
    assert len(found) <= wanted
    assert len(set(found.values())) == len(found)
    for slot, key in found.items():
        entry = state[key]
        assert entry.dataset == slots[slot]
        assert 0 < 10 - entry.version <= 8
        assert entry.uses < 2
    entries, places = list(state.items()), list(slots.items())
    random.shuffle(entries)
    random.shuffle(places)
    assert choose_groups(dict(entries), config, 1, 10, wanted, dict(places), GRADERS) == found


STEPS = 9


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["spread", "recent", "uniform"]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, STEPS - 1),
    st.data(),
)
def test_a_resumed_run_replays_the_same_groups_and_no_group_too_often_or_too_late(
    tmp_path_factory: pytest.TempPathFactory, choose: str, max_age: int, max_uses: int, killed: int, data: Any
) -> None:
    keys = {"choose": choose, "max_age": max_age, "max_uses": max_uses}
    folder = tmp_path_factory.mktemp("runs")
    whole = a_replay(folder / "whole", **keys)
    trace = [trained_step(whole, step, kept=()) for step in range(STEPS)]
    assert any(trace)
    uses = Counter(key for step in trace for key in step.values())
    assert max(uses.values()) <= max_uses
    for step, found in enumerate(trace):
        assert len(found) <= 3  # ⌊0.5 · 4 + u⌋
        for slot, key in found.items():
            assert 0 < step - key.generation <= max_age  # a generation has the weights of its own step
            assert SLOTS[slot] == SLOTS[key.slot]

    # Killed in step `killed`, and resumed from an earlier checkpoint, perhaps more than once.
    other = a_replay(folder / "other", **keys)
    checkpoint = data.draw(st.integers(max(0, killed - 6), killed))
    for step in range(killed + 1):
        trained_step(other, step, kept=[checkpoint])
    other.close()
    again = a_replay(folder / "other", **keys)
    again.rewind(checkpoint)
    assert [trained_step(again, step, kept=[checkpoint]) for step in range(checkpoint, STEPS)] == trace[checkpoint:]
    assert again.stored.state(STEPS) == whole.stored.state(STEPS)


def test_groups_whose_rewards_are_equal_are_not_stored(tmp_path: Path) -> None:
    groups = {Place(0, 0): a_group([1, 1]), Place(0, 1): a_group([0, 1]), Place(0, 2): a_group([None, 1])}
    assert a_replay(tmp_path).store(0, 0, groups, GRADERS) == [GroupKey(0, 1, 0)]


def test_a_group_is_given_up_for_its_masked_tokens_or_other_graders(tmp_path: Path) -> None:
    replay = a_replay(tmp_path)
    groups = {Place(0, slot): a_group([0, 1]) for slot in range(3)}
    groups[Place(0, 2)] = a_group([0, 1], dataset="b")
    first, second, third = replay.store(0, 0, groups, GRADERS)
    assert replay.evict(0, GRADERS, [], {first: 0.5}) == []  # not more than half
    assert replay.evict(1, GRADERS, [], {first: 0.51}) == [first]
    assert replay.evict(2, {**GRADERS, "b": "changed"}, []) == [third]
    assert replay.evict(3, {"b": "changed"}, []) == [second]  # no later step asks its data set
    assert not list(tmp_path.glob("g*"))


def test_the_oldest_are_given_up_beyond_the_size_and_it_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    replay = a_replay(tmp_path)
    for step in range(4):
        replay.store(step, step, {Place(0, 0): a_group([0, 1], version=step)}, GRADERS)
    replay = a_replay(tmp_path, max_bytes=5 * replay.stored.state(4)[GroupKey(3, 0, 0)].size // 2)
    with caplog.at_level(logging.WARNING):
        assert replay.evict(3, GRADERS, []) == [GroupKey(0, 0, 0), GroupKey(1, 0, 0)]
        replay.store(4, 4, {Place(0, 0): a_group([0, 1], version=4)}, GRADERS)
        assert replay.evict(4, GRADERS, []) == [GroupKey(2, 0, 0)]
    assert [each for each in caplog.messages if "max_bytes" in each] == caplog.messages
    assert len(caplog.messages) == 1


FILTERS = [{"kind": "reward_spread"}]
