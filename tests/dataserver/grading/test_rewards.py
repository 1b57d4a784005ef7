"""Combining several scores into one reward, with values worked out by hand."""

from collections.abc import Mapping
from itertools import permutations
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dataserver.config.datasets import OnMissingScore
from posttrain.dataserver.grading.rewards import GradingPlan, Judgement, Reward, total_reward

ABSTAINED = Judgement("abstain", None, 1.0, "not told")
FAILED = Judgement("error", None, 1.0, "timeout")


def judged(scores: Mapping[str, float | Judgement]) -> dict[str, Judgement]:
    return {
        name: score if isinstance(score, Judgement) else Judgement("ok", score, 1.0, "")
        for name, score in scores.items()
    }


def reward(
    weights: Mapping[str, float],
    scores: Mapping[str, float | Judgement],
    *gates: str,
    missing: OnMissingScore = "abstain",
) -> Reward:
    return total_reward(GradingPlan.make(weights, gates, missing), judged(scores))


@pytest.mark.parametrize(
    ("weights", "scores", "gates", "total"),
    [
        ({"right": 1}, {"right": 1.0}, (), 1.0),
        ({"right": 1}, {"right": 0.0}, (), 0.0),
        # (2 · 1 + 1 · 0.4) / 3
        ({"right": 2, "short": 1}, {"right": 1.0, "short": 0.4}, (), 0.8),
        # (3 · 0.5 + 1 · 1) / 4 · 0.5
        ({"right": 3, "tidy": 1}, {"right": 0.5, "tidy": 1.0, "cap": 0.5}, ("cap",), 0.3125),
        ({"right": 1}, {"right": 1.0, "cap": 0.5, "safe": 0.2}, ("cap", "safe"), 0.1),
        ({"right": 1}, {"right": 1.0, "cap": 0.0}, ("cap",), 0.0),
        # A grader may be both a term of the sum and a gate: (0.5 · 0.5 + 0.5 · 1) · 0.5
        ({"right": 1, "tidy": 1}, {"right": 0.5, "tidy": 1.0}, ("right",), 0.375),
        # With weight 0 a grader is asked and shown, but decides nothing.
        ({"right": 1, "shown": 0}, {"right": 1.0, "shown": 0.0}, (), 1.0),
        ({"right": 1, "shown": 0}, {"right": 1.0, "shown": FAILED}, (), 1.0),
    ],
)
def test_the_reward_is_the_weighted_mean_times_the_gates(
    weights: Mapping[str, float], scores: Mapping[str, float | Judgement], gates: tuple[str, ...], total: float
) -> None:
    assert reward(weights, scores, *gates) == ("ok", pytest.approx(total, abs=1e-12), "")


# The combination that the predecessor documents: weights 2, 1 and 1, hence shares 0.5, 0.25 and 0.25.
SHARES = {"exact": 2, "only": 1, "format": 1}


@pytest.mark.parametrize(
    ("scores", "gates", "total"),
    [
        ({"exact": 1.0, "only": 1.0, "format": 1.0}, (), 1.0),
        # The right answer with 12 extra characters: 0.5 + 0.25 · 0.4 + 0.25
        ({"exact": 1.0, "only": 0.4, "format": 1.0}, (), 0.85),
        # The same, but too long for a gate that leaves 0.2
        ({"exact": 1.0, "only": 0.4, "format": 1.0, "cap": 0.2}, ("cap",), 0.17),
    ],
)
def test_additive_graders_and_gates_combine_as_they_always_have(
    scores: Mapping[str, float], gates: tuple[str, ...], total: float
) -> None:
    assert reward(SHARES, scores, *gates) == ("ok", pytest.approx(total, abs=1e-12), "")


@pytest.mark.parametrize(
    ("missing", "outcome"),
    [
        ("abstain", ("abstain", None, "tidy: not told")),
        # The other two share tidy's weight: (2 · 1 + 1 · 0.4) / 3
        ("renormalise", ("ok", pytest.approx(0.8), "")),
        # (2 · 1 + 1 · 0.4 + 1 · 0) / 4
        ("zero", ("ok", pytest.approx(0.6), "")),
    ],
)
def test_a_missing_score_means_what_the_config_says(missing: OnMissingScore, outcome: Reward) -> None:
    scores = {"right": 1.0, "short": 0.4, "tidy": ABSTAINED}
    assert reward({"right": 2, "short": 1, "tidy": 1}, scores, missing=missing) == outcome


@pytest.mark.parametrize(
    ("missing", "outcome"),
    [
        ("abstain", ("error", None, "right: timeout")),
        ("renormalise", ("error", None, "right: timeout")),
        ("zero", ("ok", 0.0, "")),
    ],
)
def test_without_any_score_there_is_nothing_to_share(missing: OnMissingScore, outcome: Reward) -> None:
    assert reward({"right": 1, "tidy": 1}, {"right": FAILED, "tidy": ABSTAINED}, missing=missing) == outcome


@pytest.mark.parametrize(
    ("missing", "outcome"),
    [
        ("abstain", ("error", None, "right: timeout")),
        ("renormalise", ("error", None, "right: timeout")),
        # (1 · 0 + 0.25 · 1) / 1.25
        ("zero", ("ok", pytest.approx(0.2), "")),
    ],
)
def test_who_brings_a_grader_down_is_not_paid_by_the_others(missing: OnMissingScore, outcome: Reward) -> None:
    scores = {"right": FAILED, "tidy": 1.0, "short": ABSTAINED}
    assert reward({"right": 1, "tidy": 0.25}, scores, missing=missing) == outcome
    if missing == "renormalise":
        assert reward({"right": 1, "tidy": 0.25, "short": 1}, scores, missing=missing) == outcome


@pytest.mark.parametrize(
    ("missing", "outcome"),
    [
        ("abstain", ("abstain", None, "cap: not told")),
        ("renormalise", ("abstain", None, "cap: not told")),
        ("zero", ("ok", 0.0, "")),
    ],
)
def test_a_gate_without_a_score_gives_no_reward_or_none_at_all(missing: OnMissingScore, outcome: Reward) -> None:
    assert reward({"right": 1}, {"right": 1.0, "cap": ABSTAINED}, "cap", missing=missing) == outcome


def test_what_failed_is_told_before_what_abstained() -> None:
    scores = {"right": ABSTAINED, "tidy": FAILED, "cap": ABSTAINED}
    assert reward({"right": 1, "tidy": 1}, scores, "cap") == ("error", None, "tidy: timeout")


def test_shares_add_up_to_one_and_every_grader_is_asked_once() -> None:
    plan = GradingPlan.make({"right": 3, "tidy": 1, "shown": 0}, ("cap", "tidy"), "abstain")
    assert plan.weights == {"right": 0.75, "tidy": 0.25, "shown": 0.0}
    assert plan.graders == ("cap", "right", "tidy", "shown")


def test_graders_are_asked_by_name_and_those_that_decide_nothing_last() -> None:
    # Graders share a completion's time limit, so a slow one costs those after it their scores.
    plans = [
        GradingPlan.make(dict(weights), ("cap",), "zero")
        for weights in permutations([("right", 0.7), ("tidy", 0.1), ("also", 0.2), ("a shown one", 0)])
    ]
    assert {plan.graders for plan in plans} == {("also", "cap", "right", "tidy", "a shown one")}
    # The last digit of 0.7 + 0.1 + 0.2 depends on the order of summation.
    scores = {"right": 0.3, "tidy": 0.9, "also": 0.7, "a shown one": 1.0, "cap": 1.0}
    assert len({total_reward(plan, judged(scores)).value for plan in plans}) == 1


NAMES = ["a", "b", "c", "d"]
weights = st.dictionaries(st.sampled_from(NAMES), st.floats(0, 1e6), min_size=1).filter(lambda each: any(each.values()))
scores = st.floats(0, 1) | st.sampled_from([0.0, 1.0])


@given(
    weights=weights,
    gates=st.lists(st.sampled_from(NAMES), unique=True).map(tuple),
    judgements=st.fixed_dictionaries(dict.fromkeys(NAMES, scores | st.just(ABSTAINED) | st.just(FAILED))),
    missing=st.sampled_from(get_args(OnMissingScore)),
)
def test_a_reward_lies_in_zero_to_one_or_is_none(
    weights: dict[str, float],
    gates: tuple[str, ...],
    judgements: dict[str, float | Judgement],
    missing: OnMissingScore,
) -> None:
    status, value, reason = reward(weights, judgements, *gates, missing=missing)
    if status == "ok":
        assert value is not None and 0.0 <= value <= 1.0 and reason == ""
    else:
        assert value is None and reason and missing != "zero"


@given(weights=weights, score=scores)
def test_equal_scores_give_that_reward(weights: dict[str, float], score: float) -> None:
    _, value, _ = reward(weights, dict.fromkeys(NAMES, score))
    assert value == pytest.approx(score, abs=1e-9)


@given(weights=weights, judgements=st.fixed_dictionaries(dict.fromkeys(NAMES, scores)), gate=scores)
def test_a_better_score_is_never_worth_less(
    weights: dict[str, float], judgements: dict[str, float], gate: float
) -> None:
    given = {**judgements, "gate": gate}
    for name in NAMES:
        better = reward(weights, {**given, name: 1.0}, "gate").value
        assert better is not None and better >= (reward(weights, given, "gate").value or 0.0) - 1e-9
