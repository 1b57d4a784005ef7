"""Pools of difficulty: rows that are always solved, or never, come less often."""

from collections.abc import Container, Mapping

from posttrain.dataserver.adaptive.chance import chance
from posttrain.dataserver.adaptive.planned import PlannedRow, RowPlace, Statistics
from posttrain.dataserver.config.adaptive import PoolsConfig
from posttrain.dataserver.data.dataset_rows import Rows
from posttrain.dataserver.data.sampling import Sides
from posttrain.dataserver.journal.plans import RowStatistics

_DRAWS = 64

# The last bits of a mean depend on the order in which the database adds.
_ROUNDING = 1e-9


def pool_weight(pools: PoolsConfig, row: RowStatistics | None) -> float:
    """The chance with which a row is kept when it is drawn; None is a row without grades."""
    if row is None or row.count < pools.min_grades:
        return 1.0
    if row.mean >= pools.solved_at - _ROUNDING:
        return pools.solved_weight
    return pools.unsolved_weight if row.mean <= pools.unsolved_at + _ROUNDING else 1.0


class PoolDraws:
    """Replaces rows that their pool does not keep."""

    def __init__(self, pools: PoolsConfig, datasets: Mapping[str, Rows], sides: Mapping[str, Sides], seed: int) -> None:
        self._pools = pools
        self._datasets = datasets
        self._sides = sides
        self._seed = seed

    def row(
        self, iteration: int, slot: int, chosen: RowPlace, taken: Container[RowPlace], statistics: Statistics
    ) -> PlannedRow:
        """The row that the curriculum chose for a slot, or one of its data set, if possible none that is taken."""

        def is_kept(draw: int, row: RowPlace) -> bool:
            key = row[0], self._datasets[row[0]].key(row[1])
            weight = pool_weight(self._pools, statistics.get(key))
            return chance(self._seed, "keep", iteration, slot, draw) < weight

        if is_kept(0, chosen):
            return PlannedRow(*chosen, "curriculum")
        rows = self._sides[chosen[0]].train
        drawn, second_best = chosen, None
        for draw in range(1, _DRAWS + 1):
            drawn = chosen[0], int(rows[int(chance(self._seed, "row", iteration, slot, draw) * len(rows))])
            if is_kept(draw, drawn):
                if drawn not in taken:
                    return PlannedRow(*drawn, "pool")
                second_best = second_best or drawn
        return PlannedRow(*(second_best or drawn), "pool")
