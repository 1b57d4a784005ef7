"""Each filter rejects the groups that it should, by numbers worked out by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from posttrain.dataserver.schemas import Component, GradeResult
from posttrain.rl.rollout.filters.base import Filter
from posttrain.rl.rollout.filters.catalogue import FILTERS, AnyFilter, Rejection, rejection, require_acceptable
from posttrain.rl.rollout.filters.diversity import mean_similarity
from posttrain.rl.rollout.rollout import Rollout
from rl.written_rollouts import a_prompt, a_rollout

Rewards = Sequence[float | None]


def a_filter(kind: str, **keys: Any) -> Filter:
    return TypeAdapter(AnyFilter).validate_python({"kind": kind, **keys})


def rewarded(rewards: Rewards) -> list[Rollout]:
    """A group with these rewards; None is an abstention."""
    prompt = a_prompt(0)
    return [a_rollout(prompt, sample, [sample], reward) for sample, reward in enumerate(rewards)]


def rejects(judge: Filter, group: Sequence[Rollout]) -> bool:
    return judge.verdict(group, 0) is not None


BY_REWARDS: list[tuple[str, dict[str, Any], Rewards, bool]] = [
    ("reward_spread", {}, [1, 1, 1, 1], True),
    ("reward_spread", {}, [0.1] * 7, True),  # a sum of rounded tenths does not spread
    ("reward_spread", {}, [1, 1, 1, 0], False),
    ("reward_spread", {}, [None, None, 1, 0], False),
    ("reward_spread", {}, [None, None, None, 1], True),  # nothing to compare
    ("reward_spread", {}, [0, 0, None], True),
    ("reward_spread", {}, [1, 1, None], True),  # as a 0, the missing one would make a spread
    ("reward_spread", {"min_std": 0.5}, [0, 1], False),  # the deviation is exactly 0.5
    ("reward_spread", {"min_std": 0.5}, [0, 0.98], True),
    ("mean_reward", {"min": 0.5}, [0, 1], False),
    ("mean_reward", {"min": 0.5}, [0, 1, 0], True),
    ("mean_reward", {"min": 0.5}, [0, 1, None], False),  # as a 0, the missing one would lower the mean
    ("mean_reward", {"max": 0.5}, [1, 1, 0], True),
    ("mean_reward", {"min": 0.5, "max": 0.5}, [0.5], False),
    ("mean_reward", {"min": 0.5}, [None, None], False),
    ("best_reward", {"min": 1}, [0, 0.99], True),
    ("best_reward", {"min": 1}, [0, 1], False),
    ("best_reward", {"min": -1}, [-2, None], True),  # a 0 would be better
    ("best_reward", {"min": 1}, [None], False),
    ("unscored", {"max_share": 0.5}, [None, 1], False),
    ("unscored", {"max_share": 0.5}, [None, None, 1], True),
    ("unscored", {"max_share": 0}, [None, 1, 1], True),
    ("unscored", {"max_share": 0}, [0, 0, 0], False),
]


@pytest.mark.parametrize(("kind", "keys", "rewards", "is_rejected"), BY_REWARDS)
def test_rewards_decide(kind: str, keys: dict[str, Any], rewards: Rewards, is_rejected: bool) -> None:
    assert rejects(a_filter(kind, **keys), rewarded(rewards)) is is_rejected


def scored(scores: Rewards, grader: str = "exact") -> list[Rollout]:
    """A group with a reward of 0.5 each, and these scores of one grader."""
    group = rewarded([0.5] * len(scores))
    components = [Component(score=score, weight=1.0, status="ok", ms=0.0) for score in scores]
    results = [
        GradeResult(item_id="0", status="ok", reward=0.5, components={grader: component}) for component in components
    ]
    return [replace(each, result=result) for each, result in zip(group, results, strict=True)]


@pytest.mark.parametrize(
    ("group", "is_rejected"),
    [
        (scored([0, 1]), False),  # the rewards are equal, but the scores are not
        (scored([1, 1]), True),
        (scored([1, None]), True),
        (scored([1, 1], "another"), False),  # this data set is not graded by it
        (rewarded([None, None]), False),  # nor is this one
        ([replace(each, result=None) for each in rewarded([1, 1])], True),  # not graded at all
    ],
)
def test_a_component_is_a_grader_s_score_instead_of_the_reward(group: list[Rollout], is_rejected: bool) -> None:
    assert rejects(a_filter("reward_spread", component="exact"), group) is is_rejected


def written(*texts: str) -> list[Rollout]:
    prompt = a_prompt(0)
    return [replace(a_rollout(prompt, n, [ord(char) for char in text]), text=text) for n, text in enumerate(texts)]


def test_diversity_counts_different_texts() -> None:
    group = written("a", "b", "b", "b")
    assert rejects(a_filter("diversity", min_distinct=3), group)
    assert not rejects(a_filter("diversity", min_distinct=2), group)


def test_similarity_is_the_share_of_common_triples() -> None:
    # abcd has abc and bcd, bcde has bcd and cde: 1 of 3 triples is common.
    assert mean_similarity(["abcd", "bcde"]) == pytest.approx(1 / 3)  # type: ignore[list-item]
    # The pairs have similarities 1/3, 0 and 0.
    assert mean_similarity(["abcd", "bcde", "xyz"]) == pytest.approx(1 / 9)  # type: ignore[list-item]
    assert mean_similarity([[1, 2], [1, 2]]) == 1
    assert mean_similarity([[], []]) == 1
    assert mean_similarity([[1, 2], [1]]) == 0
    group = written("abcd", "bcde")
    assert rejects(a_filter("diversity", max_similarity=0.3), group)
    assert not rejects(a_filter("diversity", max_similarity=0.34), group)


@pytest.mark.parametrize(
    ("keys", "lengths", "is_rejected"),
    [
        ({"max_tokens": 4, "of": "any"}, [1, 5], True),
        ({"max_tokens": 4, "of": "all"}, [1, 5], False),
        ({"max_tokens": 4, "of": "all"}, [6, 5], True),
        ({"max_tokens": 4}, [1, 7], False),  # a mean of 4
        ({"max_tokens": 4}, [2, 7], True),
        ({"min_tokens": 2, "of": "any"}, [1, 5], True),
        ({"min_tokens": 2, "max_tokens": 4, "of": "all"}, [1, 5], True),
        ({"min_tokens": 2, "max_tokens": 4}, [1, 5], False),
    ],
)
def test_lengths_decide(keys: dict[str, Any], lengths: list[int], is_rejected: bool) -> None:
    assert rejects(a_filter("length", **keys), written(*("x" * length for length in lengths))) is is_rejected


@pytest.mark.parametrize(("max_share", "is_rejected"), [(0, True), (0.3, True), (0.34, False)])
def test_the_share_of_truncated_completions_decides(max_share: float, is_rejected: bool) -> None:
    group = [replace(each, was_cut=each.sample == 0) for each in rewarded([1, 1, 0])]
    assert rejects(a_filter("truncated", max_share=max_share), group) is is_rejected


EQUAL = {"kind": "reward_spread"}
HARD = {"kind": "best_reward", "min": 1}


@pytest.mark.parametrize(
    ("rewards", "by_all", "by_any", "by_neither"),
    [([0, 0], True, True, False), ([1, 1], False, True, False), ([0, 1], False, False, True)],
)
def test_filters_combine(rewards: Rewards, by_all: bool, by_any: bool, by_neither: bool) -> None:
    group = rewarded(rewards)
    assert rejects(a_filter("all_of", filters=[EQUAL, HARD]), group) is by_all
    assert rejects(a_filter("any_of", filters=[EQUAL, HARD]), group) is by_any
    assert rejects(a_filter("not", filter={"kind": "any_of", "filters": [EQUAL, HARD]}), group) is by_neither


def test_the_first_filter_that_rejects_a_group_is_counted() -> None:
    filters = [a_filter("truncated", max_share=0), a_filter("best_reward", min=1), a_filter("reward_spread")]
    found = rejection(filters, rewarded([0.5, 0.5]), 0)
    assert found == Rejection("best_reward", "the best reward 0.5 is below 1")
    assert rejection(filters, rewarded([0, 1]), 0) is None


LONGEST, GENERATIONS = 3, 2
SETTLED = [
    {"kind": "length", "min_tokens": 4},
    {"kind": "length", "max_tokens": 3},
    {"kind": "diversity", "min_distinct": 3},
    {"kind": "mean_reward", "min": 0, "max": 1},
    {"kind": "best_reward", "min": 0},
    EQUAL,
]


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=2, max_size=3)
    many = st.builds(
        lambda kind, filters: {"kind": kind, "filters": filters}, st.sampled_from(["all_of", "any_of"]), several
    )
    return many | inner.map(lambda each: {"kind": "not", "filter": each})


@given(
    st.recursive(st.sampled_from(SETTLED), combined, max_leaves=5),
    st.lists(st.none() | st.sampled_from([0, 1]), min_size=2, max_size=2),
    st.integers(0, LONGEST),
)
def test_what_a_filter_does_to_every_group_it_does_to_each(keys: dict[str, Any], rewards: Rewards, tokens: int) -> None:
    judge = a_filter(**keys)
    group = [a_rollout(a_prompt(0), sample, [sample] * tokens, reward) for sample, reward in enumerate(rewards)]
    if judge.why_rejects_all(GENERATIONS, LONGEST) is not None:
        assert rejects(judge, group)
    if judge.accepts_all(GENERATIONS, LONGEST):
        assert not rejects(judge, group)


TOO_SHORT, ANY_LENGTH = SETTLED[:2]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (TOO_SHORT, "filters.1: min_tokens: 4 is above max_new_tokens: 3, so every group"),
        ({"kind": "not", "filter": ANY_LENGTH}, "filters.1: length accepts every group, so every group"),
        ({"kind": "any_of", "filters": [EQUAL, TOO_SHORT]}, "filters.1: filters.1: min_tokens: 4"),
        ({"kind": "all_of", "filters": [EQUAL, TOO_SHORT]}, None),
        ({"kind": "not", "filter": TOO_SHORT}, None),
    ],
)
def test_a_filter_is_refused_only_if_it_rejects_every_group(keys: dict[str, Any], told: str | None) -> None:
    filters = (a_filter(**EQUAL), a_filter(**keys))
    if told is None:
        require_acceptable(filters, GENERATIONS, LONGEST)
    else:
        with pytest.raises(ValueError, match=told):
            require_acceptable(filters, GENERATIONS, LONGEST)


ALL = [
    {"kind": "reward_spread", "min_std": 0.2},
    {"kind": "mean_reward", "min": 0.2, "max": 0.8},
    HARD,
    {"kind": "diversity", "min_distinct": 2, "max_similarity": 0.5},
    {"kind": "length", "min_tokens": 1, "max_tokens": 5, "of": "all"},
    {"kind": "truncated", "max_share": 0.5},
    {"kind": "unscored", "max_share": 0.5},
]


@given(st.lists(st.none() | st.sampled_from([0, 0.5, 1]), min_size=1, max_size=6).flatmap(st.permutations))
def test_the_order_within_a_group_does_not_matter(rewards: list[float | None]) -> None:
    group = rewarded(rewards)
    for keys in ALL:
        judge = a_filter(**keys)
        assert rejects(judge, group) is rejects(judge, group[::-1]), keys


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"kind": "mean_reward"}, "give min, max or both"),
        ({"kind": "mean_reward", "min": 0.6, "max": 0.5}, "above max"),
        ({"kind": "length"}, "give min_tokens"),
        ({"kind": "length", "min_tokens": 6, "max_tokens": 5}, "above max_tokens"),
        ({"kind": "diversity"}, "give min_distinct"),
        ({"kind": "all_of", "filters": [EQUAL]}, "at least 2"),
        ({"kind": "reward_spread", "min_std": 0}, "greater than 0"),
        # Rewards lie in [0, 1], so their deviation is at most that of one half of 0 and one half of 1.
        ({"kind": "reward_spread", "min_std": 0.51}, "less than or equal to 0.5"),
        ({"kind": "best_reward", "min": 1.01}, "less than or equal to 1"),
        ({"kind": "mean_reward", "min": 1.01}, "less than or equal to 1"),
        ({"kind": "mean_reward", "max": -0.01}, "greater than or equal to 0"),
        ({"kind": "truncated", "max_share": 1}, "less than 1"),
        ({"kind": "not", "filter": {"kind": "spread"}}, "does not match any of the expected tags"),
        ({"kind": "best_reward", "min": 1, "max": 2}, "not permitted"),
    ],
)
def test_nonsense_is_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        a_filter(**keys)


def test_every_filter_has_a_test_here() -> None:
    tested = {case[0] for case in BY_REWARDS} | {str(keys["kind"]) for keys in ALL} | {"all_of", "any_of", "not"}
    assert tested == FILTERS.keys() - {"python"}
