"""A remembered solution takes a place in a later group of its prompt that failed throughout, and in no other."""

from pathlib import Path
from typing import Any

import pytest

from posttrain.rl.rollout.replay.config import SuccessesConfig
from posttrain.rl.rollout.replay.store import GroupKey
from posttrain.rl.rollout.replay.successes import Successes
from posttrain.rl.rollout.selection import Place
from rl.rollout.replay.replay_cases import GRADERS, a_group


def successes(folder: Path, **keys: Any) -> Successes:
    return Successes(SuccessesConfig.model_validate({"share": 1.0, **keys}), 0, folder)


@pytest.fixture
def solved(tmp_path: Path) -> Successes:
    """Prompt `one` was solved by its second completion in step 3."""
    found = successes(tmp_path)
    groups = {Place(0, 0): a_group([0, 1, 0.5], version=3), Place(0, 1): a_group([0, 0.9], sample_id="two")}
    assert found.store(3, 3, groups, GRADERS) == [GroupKey(3, 0, 0)]
    return found


def test_the_solution_replaces_the_last_completion(solved: Successes) -> None:
    failed = a_group([0, 0.5, 0.25], version=6)
    found = solved.helped(6, 6, 1, failed, GRADERS)
    assert found is not None
    assert (found.place, found.key) == (2, GroupKey(3, 0, 0))
    assert [each.reward for each in found.group] == [0, 0.5, 1]
    assert [each.sample for each in found.group] == [0, 1, 2]
    assert found.group[2].ids.tolist() == [7, 1]
    assert found.group[2].versions.tolist() == [3, 3]
    assert all(each.prompt is failed[0].prompt for each in found.group)


@pytest.mark.parametrize(
    "group",
    [
        a_group([0, 1], version=6),  # it has not failed
        a_group([0, None], version=6),  # it is not known to have failed
        a_group([0, 0], version=6, sample_id="two"),  # nothing is remembered
    ],
)
def test_other_groups_stay_as_they_are(solved: Successes, group: Any) -> None:
    assert solved.helped(6, 6, 1, group, GRADERS) is None


def test_a_solution_by_other_graders_is_none(solved: Successes) -> None:
    assert solved.helped(6, 6, 1, a_group([0, 0]), {"a": "changed"}) is None


def test_age_and_share_limit_it(tmp_path: Path, solved: Successes) -> None:
    failed = a_group([0, 0])
    assert solved.helped(203, 203, 0, failed, GRADERS) is not None
    assert solved.helped(204, 204, 0, failed, GRADERS) is None
    assert solved.helped(3, 3, 0, failed, GRADERS) is None  # what a step stores counts after it
    some = successes(tmp_path, share=0.25)
    helped = [some.helped(9, 9, slot, failed, GRADERS) is not None for slot in range(400)]
    assert 66 < sum(helped) < 134  # 100 on average; the standard deviation is 9


def test_the_newest_solution_of_a_prompt_is_kept_while_it_is_young(tmp_path: Path, solved: Successes) -> None:
    (newer,) = solved.store(5, 5, {Place(0, 4): a_group([1, 1], version=5)}, GRADERS)
    assert solved.evict(5, 6, [4]) == [GroupKey(3, 0, 0)]
    assert solved.stored.state(6).keys() == {newer}
    assert solved.evict(204, 205, [4]) == []
    assert solved.evict(205, 206, [4]) == [newer]
    # The checkpoint after 4 steps still needs the first one.
    assert sorted(file.stem for file in tmp_path.glob("*.json")) == ["g000003"]
    solved.rewind(4)
    found = solved.helped(6, 6, 0, a_group([0, 0]), GRADERS)
    assert found is not None and found.key == GroupKey(3, 0, 0)
