"""Which rows are worth asking again."""

from math import log, sqrt

import numpy as np
import pytest

from posttrain.dataserver.adaptive.planner import best_rows, upper_bounds
from posttrain.dataserver.journal.plans import RowKey, RowStatistics


def rows(**means_and_counts: tuple[float, int]) -> dict[RowKey, RowStatistics]:
    return {("sums", key): RowStatistics(count, mean) for key, (mean, count) in means_and_counts.items()}


def best(candidates: dict[RowKey, RowStatistics], limit: int = 9, exploration: float = 0.5, salt: bytes = b"") -> str:
    """The keys, best first."""
    total = sum(row.count for row in candidates.values())
    return "".join(key for _, key in best_rows(candidates, total, exploration, limit, salt))


def test_the_bound_is_the_variance_and_a_bonus_for_rows_with_few_grades() -> None:
    means, counts = np.array([0.5, 0.25, 1.0, 0.0]), np.array([4.0, 4.0, 1.0, 16.0])
    # ln 16 = 2.772589; √(ln 16 / 4) = 0.832555, √(ln 16 / 1) = 1.665109, √(ln 16 / 16) = 0.416277
    expected = [1 + 0.5 * 0.832555, 0.75 + 0.5 * 0.832555, 0.5 * 1.665109, 0.5 * 0.416277]
    assert upper_bounds(means, counts, 16, 0.5) == pytest.approx(expected, abs=1e-6)


def test_a_reward_outside_0_and_1_counts_as_the_nearest_of_them() -> None:
    assert upper_bounds(np.array([-0.5, 1.5]), np.array([4.0, 4.0]), 16, 0.0).tolist() == [0.0, 0.0]


def test_rows_that_are_solved_half_of_the_time_come_first() -> None:
    assert best(rows(a=(1.0, 8), b=(0.5, 8), c=(0.25, 8), d=(0.875, 8), e=(0.0, 8)))[:3] == "bcd"


def test_exploration_prefers_rows_with_few_grades() -> None:
    candidates = rows(a=(0.5, 64), b=(0.25, 4))
    assert best(candidates, exploration=0.0) == "ab"
    # 1 + √(ln 68 / 64) = 1.257 against 0.75 + √(ln 68 / 4) = 1.777
    assert 1 + sqrt(log(68) / 64) < 0.75 + sqrt(log(68) / 4)
    assert best(candidates, exploration=1.0) == "ba"


def test_a_hash_decides_between_equals() -> None:
    candidates = rows(**dict.fromkeys("abcdefgh", (0.5, 8)))
    orders = {best(candidates, salt=str(number).encode()) for number in range(20)}
    assert len(orders) > 15
    assert all(sorted(order) == list("abcdefgh") for order in orders)
    backwards = dict(reversed(candidates.items()))
    assert best(backwards, salt=b"1") == best(candidates, salt=b"1")


def test_the_order_in_which_rewards_were_added_does_not_decide() -> None:
    assert 0.1 + 0.2 != 0.3
    orders = {best(rows(a=(0.1 + 0.2, 8), b=(0.3, 8)), salt=str(number).encode()) for number in range(20)}
    assert orders == {"ab", "ba"}


def test_no_more_rows_come_than_are_wanted_or_there() -> None:
    candidates = rows(a=(1.0, 8), b=(0.5, 8), c=(0.25, 8))
    assert [best(candidates, limit) for limit in range(5)] == ["", "b", "bc", "bca", "bca"]
    assert best({}) == ""
