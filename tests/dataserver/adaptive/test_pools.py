"""Which pool a row is in."""

from math import nextafter

import pytest

from posttrain.dataserver.adaptive.pools import pool_weight
from posttrain.dataserver.config.adaptive import PoolsConfig
from posttrain.dataserver.journal.plans import RowStatistics

POOLS = PoolsConfig(solved_at=0.75, unsolved_at=0.25, min_grades=4, solved_weight=0.125, unsolved_weight=0.5)


@pytest.mark.parametrize(
    ("count", "mean", "weight"),
    [
        (4, 0.75, 0.125),
        (4, 1.0, 0.125),
        (4, 0.74, 1.0),
        (4, 0.26, 1.0),
        (4, 0.25, 0.5),
        (9, 0.0, 0.5),
        (3, 1.0, 1.0),
        (3, 0.0, 1.0),
    ],
)
def test_the_mean_reward_decides_once_there_are_enough_grades(count: int, mean: float, weight: float) -> None:
    assert pool_weight(POOLS, RowStatistics(count, mean)) == weight


def test_a_row_without_grades_is_in_no_pool() -> None:
    assert pool_weight(POOLS, None) == 1.0


def test_the_order_in_which_rewards_were_added_does_not_decide() -> None:
    pools = PoolsConfig(solved_at=0.6, unsolved_at=0.2, solved_weight=0.0)
    assert pool_weight(pools, RowStatistics(4, nextafter(0.6, 0))) == 0.0
    assert pool_weight(pools, RowStatistics(4, nextafter(0.2, 1))) == pools.unsolved_weight
