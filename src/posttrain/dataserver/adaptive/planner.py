"""The rows that an iteration asks: a pure function of the config, the data, the iteration and earlier grades."""

from collections.abc import Container, Iterator
from itertools import islice

from posttrain.data.curriculum.permutation import permute, round_keys
from posttrain.dataserver.adaptive.chance import chance
from posttrain.dataserver.adaptive.planned import PlannedRow, RowPlace, Statistics
from posttrain.dataserver.adaptive.pools import PoolDraws, pool_weight
from posttrain.dataserver.adaptive.replay import best_rows
from posttrain.dataserver.adaptive.schedule import Schedule, easy_numbers, replay_slots
from posttrain.dataserver.config.adaptive import AdaptiveConfig
from posttrain.dataserver.runtime import Loaded


class Planner:
    """Plans the iterations of a config."""

    def __init__(self, loaded: Loaded, adaptive: AdaptiveConfig) -> None:
        self._loaded = loaded
        self._adaptive = adaptive
        self._seed = loaded.config.seed
        self._slots = loaded.config.prompts_per_iteration
        self._stride = loaded.config.iteration_stride
        self._easy_share = Schedule(adaptive.easy.share if adaptive.easy else {0: 0})
        self._replay_share = Schedule(adaptive.replay.share if adaptive.replay else {0: 0})
        self._pools = PoolDraws(adaptive.pools, loaded.datasets, loaded.sides, self._seed) if adaptive.pools else None

    def last_graded(self, iteration: int) -> int:
        """The last iteration whose grades count for `iteration`; below 0 where there is none."""
        return iteration - self._adaptive.lag * self._stride

    def looks_back(self, iteration: int) -> bool:
        """Whether earlier grades decide anything at `iteration`."""
        chooses_by_grades = self._pools is not None or self._replay_share.at(iteration) > 0
        return chooses_by_grades and self.last_graded(iteration) >= 0

    def plan(self, iteration: int, statistics: Statistics) -> list[PlannedRow]:
        """The rows of all slots, in slot order; `statistics` are of iterations up to `last_graded`, and may be
        empty unless the iteration `looks_back`.

        Raises:
            ConfigError: nothing is drawn at that iteration.
        """
        asked: list[RowPlace] = [
            (slot.dataset, slot.index) for slot in self._loaded.sampler.slots(iteration, 0, self._slots, "train")
        ]
        easy = list(self._easy_rows(iteration))
        taken = {*asked, *easy}
        replayed = list(self._replayed_rows(iteration, self._slots - len(easy), taken, statistics))
        taken.update(replayed)
        special = [PlannedRow(*row, "easy") for row in easy] + [PlannedRow(*row, "replay") for row in replayed]
        order = sorted(range(self._slots), key=lambda slot: chance(self._seed, "slot", iteration, slot))
        planned = dict(zip(order, special, strict=False))
        for slot, row in enumerate(asked):
            if slot not in planned:
                planned[slot] = (
                    self._pools.row(iteration, slot, row, taken, statistics)
                    if self._pools
                    else PlannedRow(*row, "curriculum")
                )
                taken.add((planned[slot].dataset, planned[slot].number))
        return [planned[slot] for slot in range(self._slots)]

    def _easy_rows(self, iteration: int) -> Iterator[RowPlace]:
        easy = self._adaptive.easy
        if easy is None:
            return
        rows = self._loaded.sides[easy.dataset].train
        for number in easy_numbers(self._easy_share, iteration // self._stride, self._stride, self._slots):
            epoch, position = divmod(number, len(rows))
            # The curriculum may draw from the same data set, in another order.
            keys = round_keys(self._seed, f"easy {easy.dataset}", epoch)
            yield easy.dataset, int(rows[permute(position, len(rows), keys)])

    def _replayed_rows(
        self, iteration: int, left: int, taken: Container[RowPlace], statistics: Statistics
    ) -> Iterator[RowPlace]:
        """The rows that are asked again; `left` slots are not easy."""
        replay, pools = self._adaptive.replay, self._adaptive.pools
        shares = self._replay_share.at(iteration), self._easy_share.at(iteration)
        wanted = replay_slots(*shares, left, chance(self._seed, "replay", iteration))
        if replay is None or not wanted:
            return
        candidates = {
            key: row
            for key, row in statistics.items()
            if row.count >= replay.min_grades and (pools is None or pool_weight(pools, row) > 0)
        }
        total = sum(row.count for row in statistics.values())
        salt = str(chance(self._seed, "tie", iteration)).encode()
        # As many as all slots may ask already.
        best = best_rows(candidates, total, replay.exploration, wanted + 2 * self._slots, salt)
        places = ((dataset, self._loaded.datasets[dataset].find(key)) for dataset, key in best)
        free = ((dataset, index) for dataset, index in places if index is not None and (dataset, index) not in taken)
        yield from islice(free, wanted)
