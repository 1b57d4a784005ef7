"""Student's interval for losses, against reference numbers."""

import pytest

from posttrain.evaluate.statistics.unbounded import student_interval


def test_losses_have_students_interval() -> None:
    # Mean 2.1, s² = 0.1, √(0.1/5) = 0.14142 and t = 2.7764 for 4 degrees of freedom: 2.1 ± 0.39265.
    found = student_interval([2.1, 1.7, 2.5, 1.9, 2.3])
    assert found == (pytest.approx(1.70735, abs=1e-5), pytest.approx(2.49265, abs=1e-5), "Student's t")


def test_clusters_have_the_interval_of_their_means() -> None:
    # Each loss twice, as a cluster of two: the same means, and no more certain.
    twice = [each for each in [2.1, 1.7, 2.5, 1.9, 2.3] for _ in "ab"]
    found = student_interval(twice, [place // 2 for place in range(10)])
    assert found is not None
    assert found[:2] == pytest.approx((1.70735, 2.49265), abs=1e-5)


def test_a_single_loss_or_cluster_has_none() -> None:
    assert student_interval([2.0]) is None
    assert student_interval([2.0, 3.0], "aa") is None
