"""The order in which a stage draws from its data sets, as one repeating period."""

import math
from array import array
from collections.abc import Mapping, Sequence
from fractions import Fraction
from heapq import heapify, heappop, heappush

from posttrain.errors import ConfigError

MAX_PERIOD = 2**16
"""Slots in the longest period. It bounds the tables' memory and the smallest share that can be represented."""


def integer_shares(weights: Mapping[str, float]) -> dict[str, int]:
    """Return n_d with n_d / Σn = w_d / Σw, by name, with Σn ≤ 2**16 and without the data sets of weight zero.

    Exact if a common denominator allows it (0.7 and 0.3 give 7 and 3). Otherwise Σn = 2**16 by the method of largest
    remainders, which changes each share by less than 2**-16.

    Raises:
        ConfigError: a weight is negative or not finite, none is positive, or one is too small to be represented.
    """
    exact = {name: _exact_weight(name, weights[name]) for name in sorted(weights)}
    total = sum(exact.values())
    if not total:
        raise ConfigError(f"no data set has a positive weight: {', '.join(exact) or 'none is named'}")
    shares = {name: weight / total for name, weight in exact.items() if weight}
    period = math.lcm(*(share.denominator for share in shares.values()))
    if period <= MAX_PERIOD:
        return {name: int(share * period) for name, share in shares.items()}
    return _largest_remainders(shares)


def _exact_weight(name: str, weight: float) -> Fraction:
    if not math.isfinite(weight) or weight < 0:
        raise ConfigError(f"data set {name!r}: its weight is {weight}; it must be a finite number, 0 or more")
    # From its decimals: 0.1 means one tenth, not the nearest binary fraction.
    return Fraction(str(weight))


def _largest_remainders(shares: Mapping[str, Fraction]) -> dict[str, int]:
    quotas = {name: share * MAX_PERIOD for name, share in shares.items()}
    counts = {name: math.floor(quota) for name, quota in quotas.items()}
    missing = MAX_PERIOD - sum(counts.values())
    # The sort is stable and the names are sorted already, so ties go by name.
    for name in sorted(counts, key=lambda name: counts[name] - quotas[name])[:missing]:
        counts[name] += 1
    for name, count in counts.items():
        if count == 0:
            raise ConfigError(
                f"data set {name!r}: its share of the stage, {float(shares[name]):.2g}, is less than "
                f"one row in {MAX_PERIOD}; raise its weight, or leave it out"
            )
    return counts


class Period:
    """M = Σ n_d slots; each data set d gets n_d of them, spread as evenly as whole rows allow.

    For D > 1 data sets let κ = 2D − 2, let c_d be the number of slots that d got before slot t = 1..M, and let
    σ_d = n_d·t/M − c_d be what d is owed. Slot t goes to the d with σ_d ≥ 1/κ that must be served soonest: the one
    with the smallest (1 − 1/κ − σ_d)·M/n_d, ties by name. Then every prefix t, also over many periods, satisfies

        |count_d(t) − n_d·t/M| ≤ 1 − 1/(2D − 2),

    which is the best possible bound. Taking the largest σ_d instead looks simpler but drifts by more than a slot with
    many data sets.

    Source: R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980), 323-330.
    """

    def __init__(self, shares: Mapping[str, int]) -> None:
        """`shares`: n_d ≥ 1 by name, with Σ n_d ≤ 2**16."""
        self.names = tuple(sorted(shares))
        self.shares = tuple(shares[name] for name in self.names)
        self.seq, self.rank = _assign(self.shares)
        """Per slot: the data set, as an index into `names`, and how often it came earlier in the period."""

    def __len__(self) -> int:
        return len(self.seq)

    def at(self, index: int) -> tuple[str, int]:
        """Return the data set of slot `index` ≥ 0 and how many earlier slots it got, over all periods."""
        rounds, slot = divmod(index, len(self.seq))
        dataset = self.seq[slot]
        return self.names[dataset], rounds * self.shares[dataset] + self.rank[slot]

    def counts(self, length: int) -> dict[str, int]:
        """Return how many of the first `length` slots each data set gets, over all periods."""
        rounds, rest = divmod(length, len(self.seq))
        prefix = self.seq[:rest]
        return {
            name: rounds * share + prefix.count(dataset)
            for dataset, (name, share) in enumerate(zip(self.names, self.shares, strict=True))
        }


# Quoted: `array` takes a type argument only from Python 3.12 on.
def _assign(shares: Sequence[int]) -> "tuple[array[int], array[int]]":
    """Return (seq, rank), computed in integers in O(M log D).

    The earliest slot for d and its deadline change only when d is served. So each data set waits until
    t ≥ M·(1 + κ·c_d) / (κ·n_d), i.e. σ_d ≥ 1/κ, and then joins a queue sorted by
    (1 − 1/κ − σ_d)·M/n_d = M·(κ·(c_d + 1) − 1) / (κ·n_d) − t, where the factor M/κ and the term t are common to all.
    """
    total = sum(shares)
    if len(shares) == 1:
        return array("H", bytes(2 * total)), array("H", range(total))
    kappa = 2 * len(shares) - 2
    counts = [0] * len(shares)
    seq, rank = array("H"), array("H")
    waiting = [(_first_slot(total, kappa, 0, share), dataset) for dataset, share in enumerate(shares)]
    heapify(waiting)
    queue: list[tuple[int, int]] = []
    for slot in range(1, total + 1):
        while waiting and waiting[0][0] <= slot:
            dataset = heappop(waiting)[1]
            heappush(queue, (_urgency(kappa, counts[dataset], shares[dataset]), dataset))
        # Never empty: the σ_d add up to 1, so the largest is at least 1/D, and 1/D ≥ 1/κ.
        dataset = heappop(queue)[1]
        seq.append(dataset)
        rank.append(counts[dataset])
        counts[dataset] += 1
        heappush(waiting, (_first_slot(total, kappa, counts[dataset], shares[dataset]), dataset))
    return seq, rank


def _first_slot(total: int, kappa: int, count: int, share: int) -> int:
    """⌈M·(1 + κ·c) / (κ·n)⌉"""
    return -(-total * (1 + kappa * count) // (kappa * share))


def _urgency(kappa: int, count: int, share: int) -> int:
    """(κ·(c + 1) − 1) / n, as an integer that sorts in the same way.

    Two different fractions of this form differ by at least 1 / (n·n') ≥ 2**-32, hence by 1 or more after multiplication
    by 2**32; rounding down then keeps their order.
    """
    return ((kappa * (count + 1) - 1) << 32) // share
