"""The state after s steps is the fold of the events until then, whatever happened later."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posttrain.errors import DataError
from posttrain.rl.rollout.replay.store import INDEX, GroupKey, RolloutStore, State, fold
from posttrain.rl.rollout.selection import Place
from rl.rollout.replay.replay_cases import GRADERS, a_group

HALF = a_group([0, 1])


@pytest.fixture
def store(tmp_path: Path) -> RolloutStore:
    return RolloutStore(tmp_path / "rollouts")


def test_a_group_is_read_as_it_was_stored(store: RolloutStore) -> None:
    groups = {Place(1, 0): a_group([1, 0, None], version=3), Place(0, 2): a_group([0.5, 1], dataset="b")}
    keys = store.store(4, 4, groups, GRADERS)
    assert keys == [GroupKey(4, 2, 0), GroupKey(4, 0, 1)]  # in the order of the places
    state = store.state(5)
    first, second = state[keys[0]], state[keys[1]]
    assert (first.dataset, first.mean_reward, first.version, first.graded_by) == ("b", 0.75, 0, "graders of b")
    assert (second.dataset, second.mean_reward, second.version, second.uses) == ("a", 0.5, 3, 0)
    # 2 tokens and 6 bytes of the prompt; 2 completions with 2 tokens of 17 bytes and 3 bytes of text each.
    assert first.size == 2 * 8 + len("prompt") + 2 * (2 * 17 + len("7 0"))
    assert [each.reward for each in store.rollouts(keys[1])] == [1, 0, None]
    assert [each.ids.tolist() for each in store.rollouts(keys[0])] == [[7, 0], [7, 1]]


def test_what_a_step_stores_counts_after_it(store: RolloutStore) -> None:
    (key,) = store.store(3, 3, {Place(0, 0): HALF}, GRADERS)
    assert store.state(3) == {}
    assert store.state(4).keys() == {key}


def test_the_oldest_token_decides_the_version(store: RolloutStore) -> None:
    group = a_group([0, 1], version=5)
    group[1].versions[0] = 2
    (key,) = store.store(6, 6, {Place(0, 0): group}, GRADERS)
    assert store.state(7)[key].version == 2


ACTIONS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["stored", "used", "evicted"])), max_size=12)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS, st.data())
def test_the_state_is_the_fold_of_the_events_so_far(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[int, str]], data: Any
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = RolloutStore(folder)
    uses: dict[GroupKey, int] = {}  # a model: the uses of each group that is there
    expected: list[dict[GroupKey, int]] = [{}]
    step = 0
    for number, (steps, kind) in enumerate(actions):
        for _ in range(steps):
            step += 1
            expected.append(dict(uses))
        if kind == "stored":
            (key,) = store.store(step, number, {Place(0, 0): HALF}, GRADERS)
            uses[key] = 0
        elif uses:
            key = data.draw(st.sampled_from(sorted(uses)))
            if kind == "used":
                store.used(step, [key])
                uses[key] += 1
            else:
                store.evicted(step, [key])
                del uses[key]
    expected.append(dict(uses))

    def told(state: State) -> dict[GroupKey, int]:
        return {key: entry.uses for key, entry in state.items()}

    order = data.draw(st.permutations(range(len(expected))))
    for other in (store, RolloutStore(folder)):
        for finished in order:
            assert told(other.state(finished)) == expected[finished]
            assert other.state(finished) == fold(event for _, event in other.events(finished))
    back = data.draw(st.integers(0, len(expected) - 1))
    store.rewind(back)
    assert told(store.state(10**6)) == expected[back]
    assert told(RolloutStore(folder).state(10**6)) == expected[back]


def test_files_stay_while_a_kept_checkpoint_needs_them(store: RolloutStore, tmp_path: Path) -> None:
    for step in range(3):
        store.store(step, step, {Place(0, 0): HALF}, GRADERS)

    def there() -> list[str]:
        return sorted(file.name for file in (tmp_path / "rollouts").glob("g*.json"))

    store.evicted(3, [GroupKey(0, 0, 0), GroupKey(1, 0, 0)])
    store.remove_files([1, 4])  # after step 1 only generation 0 is there, after step 4 only generation 2
    assert there() == ["g000000.json", "g000002.json"]
    store.rewind(1)
    (key,) = store.state(9)
    assert len(store.rollouts(key)) == 2
    store.remove_files([1])
    assert there() == ["g000000.json"]


def test_a_generation_is_stored_again_after_winding_back_only(store: RolloutStore) -> None:
    store.store(0, 0, {Place(0, 0): HALF}, GRADERS)
    with pytest.raises(ValueError, match="generation 0"):
        store.store(1, 0, {Place(0, 1): HALF}, GRADERS)
    store.rewind(0)
    (key,) = store.store(0, 0, {Place(0, 1): a_group([1, 0])}, GRADERS)
    assert [each.reward for each in store.rollouts(key)] == [1, 0]


def test_steps_never_go_back(store: RolloutStore) -> None:
    store.store(5, 5, {Place(0, 0): HALF}, GRADERS)
    with pytest.raises(ValueError, match="earlier step"):
        store.store(4, 4, {Place(0, 0): HALF}, GRADERS)
    assert store.state(9).keys() == {GroupKey(5, 0, 0)}


def test_nothing_is_recorded_of_a_group_that_is_not_there(store: RolloutStore) -> None:
    (key,) = store.store(0, 0, {Place(0, 0): HALF}, GRADERS)
    store.evicted(1, [key])
    for record in (store.used, store.evicted):
        with pytest.raises(ValueError, match="evicted"):
            record(1, [key])
    assert store.state(2) == {}


def test_rollouts_without_log_probabilities_are_refused(store: RolloutStore) -> None:
    (first, second) = a_group([0, 1])
    object.__setattr__(second, "logprobs", None)
    with pytest.raises(ValueError, match="log-probabilities"):
        store.store(0, 0, {Place(0, 0): [first, second]}, GRADERS)
    assert store.state(9) == {}


def test_a_damaged_index_is_one_error(store: RolloutStore, tmp_path: Path) -> None:
    store.close()
    (tmp_path / "rollouts" / INDEX).write_bytes(b"this is no database, " * 100)
    with pytest.raises(DataError, match=rf"{INDEX}: .*damaged"):
        RolloutStore(tmp_path / "rollouts")


def test_a_process_that_dies_while_it_records_leaves_all_or_nothing(store: RolloutStore, tmp_path: Path) -> None:
    store.store(0, 0, {Place(0, slot): HALF for slot in range(3)}, GRADERS)
    other = sqlite3.connect(tmp_path / "rollouts" / INDEX, isolation_level=None)
    other.execute("begin")
    other.execute("delete from events where slot = 0")
    other.close()  # without a commit, as if it had been killed
    assert len(RolloutStore(tmp_path / "rollouts").state(1)) == 3
