"""Choose the rows of an iteration, as a pure function of config, data, iteration and earlier grades."""

from collections.abc import Container, Iterator, Mapping, Sequence
from hashlib import blake2b
from heapq import nsmallest
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from posttrain.base.chance import chance
from posttrain.config.schedule import Schedule
from posttrain.data.curriculum.permutation import permute, round_keys
from posttrain.dataserver.config.adaptive import AdaptiveConfig, PoolsConfig, easy_numbers, replay_slots
from posttrain.dataserver.data.sampling import Slot
from posttrain.dataserver.data.substitutes import Use, choose_substitutes
from posttrain.dataserver.journal.plans import RowKey, RowStatistics, Statistics
from posttrain.dataserver.runtime import Loaded

Numbers = npt.NDArray[np.float64]

# Bounds are rounded, so that the order in which the database sums the rewards makes no difference.
_DECIMALS = 9


def upper_bounds(means: Numbers, counts: Numbers, total: int, exploration: float) -> Numbers:
    """v + exploration·√(ln N / n) with v = 4p(1 − p).

    p is the mean reward of a row, n the number of its grades, and N that of all grades. v is 1 if half of the
    completions succeed, where the rewards of a group differ most, and 0 if all or none do, where GRPO learns nothing.

    Source: UCB1 in P. Auer, N. Cesa-Bianchi and P. Fischer, "Finite-time Analysis of the Multiarmed Bandit Problem",
    Machine Learning 47 (2002), 235-256, with the mean reward of an arm in place of v and √2 in place of exploration.
    """
    solved = np.clip(means, 0.0, 1.0)
    return 4 * solved * (1 - solved) + exploration * np.sqrt(np.log(total) / counts)


def best_rows(candidates: Statistics, total: int, exploration: float, limit: int, salt: bytes) -> list[RowKey]:
    """At most `limit` rows with the highest bounds, highest first; a hash with the salt breaks ties.

    Args:
        total: number of grades, including those of rows that are not candidates.
        salt: at most 64 bytes.
    """
    if not candidates or limit < 1:
        return []
    keys = list(candidates)
    means = np.array([row.mean for row in candidates.values()])
    counts = np.array([row.count for row in candidates.values()], dtype=np.float64)
    bounds = np.round(upper_bounds(means, counts, total, exploration), _DECIMALS)
    cut = max(0, len(keys) - limit)
    # Only rows at least as good as the last one wanted are ranked one by one.
    chosen = np.flatnonzero(bounds >= np.partition(bounds, cut)[cut])
    ranks = ((-bounds[place], _tie(keys[place], salt), keys[place]) for place in chosen.tolist())
    return [key for _, _, key in nsmallest(limit, ranks)]


def _tie(key: RowKey, salt: bytes) -> bytes:
    return blake2b("\0".join(key).encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()


_DRAWS = 64

# The last bits of a mean depend on the order in which the database sums.
_ROUNDING = 1e-9

RowPlace = tuple[str, int]
"""(data set, number of a row in it)."""

Reason = Literal["curriculum", "pool", "easy", "replay"]
"""Why a row is asked: the curriculum chose it; it replaces a row rejected by its pool; it is easy; it was asked
before."""


class PlannedRow(NamedTuple):
    """The row that fills a slot: row `number` of a data set."""

    dataset: str
    number: int
    reason: Reason


def pool_weight(pools: PoolsConfig, row: RowStatistics | None) -> float:
    """The probability of keeping a row when it is drawn; `row` is None for a row without grades."""
    if row is None or row.count < pools.min_grades:
        return 1.0
    if row.mean >= pools.solved_at - _ROUNDING:
        return pools.solved_weight
    return pools.unsolved_weight if row.mean <= pools.unsolved_at + _ROUNDING else 1.0


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

    def last_graded(self, iteration: int) -> int:
        """The last iteration whose grades count for `iteration`; below 0 if there is none."""
        return iteration - self._adaptive.lag * self._stride

    def looks_back(self, iteration: int) -> bool:
        """Whether earlier grades affect the plan of `iteration`."""
        chooses_by_grades = self._adaptive.pools is not None or self._replay_share.at(iteration) > 0
        return chooses_by_grades and self.last_graded(iteration) >= 0

    def plan(self, iteration: int, statistics: Statistics) -> list[PlannedRow]:
        """The rows of all slots, in slot order.

        `statistics` are of iterations up to `last_graded`, and may be empty unless the iteration `looks_back`.

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
                planned[slot] = self._pooled_row(iteration, slot, row, taken, statistics)
                taken.add(planned[slot][:2])
        return [planned[slot] for slot in range(self._slots)]

    def substitutes(self, iteration: int, planned: Sequence[PlannedRow], statistics: Statistics) -> list[list[int]]:
        """Rows for the substitutes of all slots, as `choose_substitutes` does, from the statistics of the plan.

        A draw with the weight of its pool decides whether a row is used in its turn; a retired row is never used.
        """
        pools = self._adaptive.pools

        def use(dataset: str, number: int) -> Use:
            if pools is None:
                return "first"
            weight = pool_weight(pools, statistics.get((dataset, self._loaded.datasets[dataset].key(number))))
            if not weight:
                return "never"
            return "first" if chance(self._seed, "substitute", iteration, dataset, number) < weight else "later"

        slots = [Slot(slot, row.dataset, row.number) for slot, row in enumerate(planned)]
        attempts = self._loaded.config.substitutes
        return choose_substitutes(slots, self._loaded.sides, self._seed, iteration, attempts, use)

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
        """The rows to ask again; `left` is the number of slots that are not easy."""
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
        # Enough even if all rows in `taken`, at most two per slot, are among the best.
        best = best_rows(candidates, total, replay.exploration, wanted + 2 * self._slots, salt)
        places = ((dataset, self._loaded.datasets[dataset].find(key)) for dataset, key in best)
        free = ((dataset, index) for dataset, index in places if index is not None and (dataset, index) not in taken)
        yield from islice(free, wanted)

    def _pooled_row(
        self, iteration: int, slot: int, chosen: RowPlace, taken: Container[RowPlace], statistics: Statistics
    ) -> PlannedRow:
        """The curriculum's row for a slot, or one of the same data set, free if possible, if its pool rejects it."""
        pools, dataset = self._adaptive.pools, chosen[0]
        if pools is None:
            return PlannedRow(*chosen, "curriculum")

        def is_kept(draw: int, number: int) -> bool:
            key = dataset, self._loaded.datasets[dataset].key(number)
            return chance(self._seed, "keep", iteration, slot, draw) < pool_weight(pools, statistics.get(key))

        if is_kept(0, chosen[1]):
            return PlannedRow(*chosen, "curriculum")
        rows = self._loaded.sides[dataset].train
        drawn, second_best = chosen[1], None
        for draw in range(1, _DRAWS + 1):
            drawn = int(rows[int(chance(self._seed, "row", iteration, slot, draw) * len(rows))])
            if is_kept(draw, drawn):
                if (dataset, drawn) not in taken:
                    return PlannedRow(dataset, drawn, "pool")
                second_best = drawn if second_best is None else second_best
        return PlannedRow(dataset, drawn if second_best is None else second_best, "pool")

    def outline(self) -> Iterator[str]:
        """The lines of a dry run: one on which grades count, and one for each way of choosing rows."""
        adaptive = self._adaptive
        yield f"adaptive: iteration i depends on the grades of iterations up to i − {adaptive.lag * self._stride}"
        if pools := adaptive.pools:
            yield (
                f"  pools: rows with {pools.min_grades} or more grades are kept with probability "
                f"{pools.solved_weight:g} if their mean is at least {pools.solved_at:g}, and with "
                f"{pools.unsolved_weight:g} if it is at most {pools.unsolved_at:g}"
            )
        if easy := adaptive.easy:
            yield f"  easy: {_points(easy.share)} of the prompts come from {easy.dataset}"
        if replay := adaptive.replay:
            yield f"  replay: {_points(replay.share)} of the prompts are rows from earlier iterations"


def _points(share: Mapping[int, float]) -> str:
    first, *later = (f"{value:.3g} at iteration {iteration}" for iteration, value in sorted(share.items()))
    return ", ".join([first, *(f"then {point}" for point in later)]) + ("," if later else "")
