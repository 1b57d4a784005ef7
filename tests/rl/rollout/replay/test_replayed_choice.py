"""Which slots replayed groups take, what is trained and what is counted: by hand, with a filter on the mean reward."""

from dataclasses import replace

import pytest

from posttrain.rl.rollout.choice import by_place, choose
from posttrain.rl.rollout.config import RolloutConfig
from posttrain.rl.rollout.replay.candidates import Candidate, Candidates
from posttrain.rl.rollout.replay.store import GroupKey
from posttrain.rl.rollout.replay.successes import Helped
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.selection import Place
from rl.rollout.replay.replay_cases import a_group
from rl.written_rollouts import a_prompt, a_rollout


def group(slot: int, rewards: tuple[float, float] | None, attempt: int = 0) -> list[Rollout]:
    """Two completions; without tokens if there are no rewards."""
    prompt = replace(a_prompt(slot), attempt=attempt, sample_id=f"{slot}:{attempt}")
    if rewards is None:
        return [replace(a_rollout(prompt, number, []), result=None) for number in range(2)]
    return [a_rollout(prompt, number, [7, 8], reward) for number, reward in enumerate(rewards)]


def config(rejected: str, fill: str) -> RolloutConfig:
    replay = {"share": 0.5, "fill": fill}
    filters = [{"kind": "mean_reward", "max": 0.6}]
    keys = {"filters": filters, "rejected": rejected, "generations": 2, "replay": replay}
    return RolloutConfig.model_validate(keys)


def candidates(wanted: int, *, is_reserved: bool) -> Candidates:
    stored = [
        Candidate(GroupKey(number, 0, 0), number, tuple(a_group([0, 1], sample_id=f"stored {number}", version=number)))
        for number in range(2)
    ]
    return Candidates(0, 7, wanted, is_reserved, tuple(stored))


# Slots 0 and 2 are too easy.
ASKED = [*group(0, (1.0, 1.0)), *group(1, (1.0, 0.0)), *group(2, (1.0, 0.5))]


@pytest.mark.parametrize(
    ("rejected", "wanted", "trained"),
    [
        ("drop", 2, ["stored 0", "1:0", "stored 1"]),
        ("drop", 0, ["left out", "1:0", "left out"]),
        ("substitute", 2, ["stored 0", "1:0", "stored 1"]),
        ("substitute", 0, ["0:0", "1:0", "2:0"]),
    ],
)
def test_replayed_groups_take_the_slots_of_rejected_ones(rejected: str, wanted: int, trained: list[str]) -> None:
    choice = choose(by_place(ASKED), config(rejected, "rejected"), 7, candidates(wanted, is_reserved=False))
    found = choice.trained[::2]
    assert sorted("left out" if each.is_left_out else each.prompt.sample_id for each in found) == sorted(trained)
    assert found[1].prompt.sample_id == "1:0"
    assert choice.selection.accepted == 1
    assert [each.prompt.sample_id for each in choice.asked[::2]] == ["0:0", "1:0", "2:0"]


def test_no_substitute_is_asked_for_a_slot_that_is_replayed() -> None:
    settings = config("substitute", "rejected")
    assert choose(by_place(ASKED), settings, 7, candidates(0, is_reserved=False)).next_round(2) == (
        Place(1, 0),
        Place(1, 2),
    )
    one = choose(by_place(ASKED), settings, 7, candidates(1, is_reserved=False))
    (taken,) = one.replayed
    (left,) = {0, 2} - {taken}
    assert one.next_round(2) == (Place(1, left),)
    # The substitute takes the slot that is left, and the replayed slot stays as it is.
    more = choose(by_place([*ASKED, *group(left, (0.0, 1.0), 1)]), settings, 7, candidates(1, is_reserved=False))
    assert more.replayed.keys() == one.replayed.keys()
    assert more.next_round(2) == ()
    assert {each.prompt.sample_id for each in more.trained} == {"1:0", f"{left}:1", "stored 0"}
    assert choose(by_place(ASKED), settings, 7, candidates(2, is_reserved=False)).next_round(2) == ()


def test_a_reserved_slot_is_neither_judged_nor_counted_among_the_asked() -> None:
    settings, reserving = config("drop", "reserved"), candidates(1, is_reserved=True)
    (slot,) = reserving.displaced("aaa")
    asked = [each for number in range(3) for each in group(number, None if number == slot else (1.0, 0.0))]
    choice = choose(by_place(asked), settings, 7, reserving)
    assert choice.displaced == {slot}
    assert [each.prompt.slot for each in choice.asked[::2]] == [each for each in range(3) if each != slot]
    assert choice.trained[2 * slot].prompt.sample_id == "stored 0"
    assert choice.metrics() == {
        "rollouts/accepted_share": 1.0,
        "rollouts/substituted_share": 0.0,
        "rollouts/groups_asked": 2.0,
        "rollouts/groups_unused": 0.0,
    }


def test_a_rejected_group_takes_no_candidate_that_is_meant_for_reserved_slots() -> None:
    choice = choose(by_place(ASKED), config("drop", "reserved"), 7, candidates(0, is_reserved=True))
    assert (choice.replayed, choice.selection.trained) == ({}, (None, Place(0, 1), None))


def test_only_what_the_filters_accept_is_kept_also_if_no_slot_needs_it() -> None:
    asked = [*ASKED, *group(0, (0.0, 0.5), 1)]
    choice = choose(by_place(asked), config("substitute", "rejected"), 7, candidates(2, is_reserved=False))
    assert choice.selection.unused == (Place(1, 0),)
    assert list(choice.accepted) == [Place(0, 1), Place(1, 0)]


def test_a_group_with_a_remembered_solution_is_trained_in_place_of_its_own() -> None:
    failed = group(0, (0.0, 0.0))
    solved = a_rollout(failed[0].prompt, 1, [9], 1.0)
    choice = choose(by_place(failed), config("drop", "reserved"), 7)
    helped = replace(choice, helped={0: Helped((failed[0], solved), 1, GroupKey(3, 0, 0))})
    assert [each.reward for each in helped.trained] == [0.0, 1.0]
    assert [each.reward for each in helped.asked] == [0.0, 0.0]
