"""Models against a baseline, from their scores to the verdict."""

import pytest

from posttrain.evaluate.statistics.comparison import compare
from posttrain.evaluate.statistics.estimate import estimate
from posttrain.evaluate.statistics.scores import Scale, Scores, scores_of_answers


def scores(*runs: tuple[float | None, int], scale: Scale = "reward") -> Scores:
    """Prompts 0, 1, …, of which the first have the first value, and so on."""
    values = [value for value, count in runs for _ in range(count)]
    return Scores({str(place): value for place, value in enumerate(values)}, values.count(None), scale)


def test_a_model_that_solves_more_is_better_and_the_other_way_round_worse() -> None:
    # 15 of 100 became right and 5 wrong: p = 0.0414 by McNemar's exact test.
    base = scores((0.0, 15), (1.0, 35), (0.0, 50))
    tuned = scores((1.0, 15), (0.0, 5), (1.0, 30), (0.0, 50))
    found = compare({"tuned": tuned}, base)["tuned"]
    assert (found.verdict, found.test, found.p) == ("better", "exact McNemar", pytest.approx(0.04139, abs=1e-5))
    assert (found.difference.prompts, found.difference.clusters, found.difference.ungraded) == (100, None, 0)
    assert found.difference.value == pytest.approx(0.1)
    assert (found.difference.low, found.difference.high) == pytest.approx((0.013447, 0.192397), abs=1e-6)
    assert found.difference.method == "Tango"
    assert compare({"base": base}, tuned)["base"].verdict == "worse"


def test_what_looks_like_forgetting_may_be_chance() -> None:
    # 4 of 40 answers became wrong, none right: p = 2/2⁴.
    found = compare({"tuned": scores((1.0, 36), (0.0, 4))}, scores((1.0, 40)))["tuned"]
    assert (found.verdict, found.p) == ("not told apart", pytest.approx(0.125))
    # A difference of 19 points would have been told: 6 of 40 must change, and that in 80 % of cases.
    assert found.smallest == pytest.approx(0.1905, abs=1e-4)


def test_four_models_need_more_to_be_told_apart() -> None:
    base = scores((0.0, 50), (1.0, 50))
    tuned = scores((1.0, 8), (0.0, 42), (1.0, 49), (0.0, 1))  # 8 up, 1 down: p = 2·(1 + 9)/2⁹ = 0.039
    assert compare({"tuned": tuned}, base)["tuned"].verdict == "better"
    found = compare({"tuned": tuned, "same": base, "copy": base, "twin": base}, base)
    assert found["tuned"].adjusted_p == pytest.approx(4 * 20 / 512)
    assert {each.verdict for each in found.values()} == {"not told apart"}


def test_an_ungraded_answer_is_left_out_on_both_sides_and_counted() -> None:
    base = scores((None, 2), (0.0, 28))
    tuned = scores((1.0, 10), (None, 3), (0.0, 17))
    found = compare({"tuned": tuned}, base)["tuned"].difference
    # 25 prompts have a grade on both sides; 8 of them became right.
    assert (found.prompts, found.ungraded, found.value) == (25, 5, pytest.approx(8 / 25))
    alone = estimate(tuned)
    assert (alone.prompts, alone.ungraded, alone.value) == (27, 3, pytest.approx(10 / 27))


def test_halves_and_means_of_several_answers_get_sign_flips() -> None:
    answers = {str(place): [1.0, 0.0] if place < 8 else [0.0, 0.0] for place in range(30)}
    nothing = {name: [0.0, 0.0] for name in answers}
    found = compare({"tuned": scores_of_answers(answers)}, scores_of_answers(nothing))["tuned"]
    assert (found.test, found.p, found.verdict) == ("exact sign flips", pytest.approx(2 / 2**8), "better")
    assert found.difference.value == pytest.approx(4 / 30)


def test_clusters_are_flipped_as_a_whole_and_few_of_them_are_too_few() -> None:
    base, tuned = scores((0.0, 150)), scores((1.0, 20), (0.0, 130))
    of_five = {str(place): place // 5 for place in range(150)}
    found = compare({"tuned": tuned}, base, of_five)["tuned"]
    # 20 prompts in 4 of 30 clusters became right: 2/2⁴ of all signs do as much, not 2/2²⁰.
    assert (found.p, found.verdict, found.difference.clusters) == (pytest.approx(2 / 2**4), "not told apart", 30)
    of_six = {str(place): place // 6 for place in range(150)}
    assert compare({"tuned": tuned}, base, of_six)["tuned"].verdict == "too few prompts"
    # 100 clusters, but one has 51 prompts: they say no more than 150²/(51² + 99) = 8.3 equal ones.
    uneven = {str(place): min(place, 99) for place in range(150)}
    assert compare({"tuned": scores((1.0, 150))}, base, uneven)["tuned"].verdict == "too few prompts"


@pytest.mark.parametrize(("prompts", "verdict"), [(29, "too few prompts"), (30, "better")])
def test_below_thirty_prompts_there_is_no_verdict(prompts: int, verdict: str) -> None:
    assert compare({"tuned": scores((1.0, prompts))}, scores((0.0, prompts)))["tuned"].verdict == verdict


def test_a_lower_loss_is_better() -> None:
    base = scores(*((2 + place / 40, 1) for place in range(40)), scale="loss")
    tuned = scores(*((1.9 + place / 41, 1) for place in range(40)), scale="loss")
    found = compare({"tuned": tuned}, base)["tuned"]
    assert (found.verdict, found.difference.method) == ("better", "Student's t")
    assert found.difference.value is not None and found.difference.value < 0
    assert compare({"same": base}, base)["same"].verdict == "not told apart"


def test_without_a_prompt_that_both_sides_have_a_grade_for_nothing_is_said() -> None:
    found = compare({"tuned": scores((None, 30))}, scores((1.0, 30)))["tuned"]
    assert (found.verdict, found.difference.prompts, found.difference.ungraded) == ("too few prompts", 0, 30)
    assert (found.difference.value, found.difference.low, found.smallest) == (None, None, None)
    nothing = estimate(scores((None, 30)))
    assert (nothing.value, nothing.low, nothing.high, nothing.ungraded) == (None, None, None, 30)


def test_other_prompts_or_scales_are_refused_by_the_models_name() -> None:
    with pytest.raises(ValueError, match="tuned"):
        compare({"tuned": scores((1.0, 30))}, scores((1.0, 29)))
    with pytest.raises(ValueError, match="tuned"):
        compare({"tuned": scores((1.0, 30))}, scores((1.0, 30), scale="loss"))


def test_a_prompt_without_a_cluster_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="prompt 1"):
        estimate(scores((1.0, 2)), {"0": "a"})
