"""Whether a mean paired difference is more than chance: the sign-flip test, and McNemar's test as a case of it.

If two models are equally good, each difference could as well have had the other sign. The p-value is the share of all
choices of signs whose sum is at least as far from 0 as the observed one. Clusters are flipped as a whole.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import getitem
from random import Random
from typing import NamedTuple

FLIPS = 10_000
EXACT = "exact sign flips"
_MOST_SUMS = 2**18
"""Up to so many additions, all choices of signs are counted: with any 17 differences, or any number that are alike."""
_DIGITS = 9
"""Sizes are compared to so many decimal places, as a share of the largest."""
_BITS = 8


class PValue(NamedTuple):
    """A two-sided p-value, and the name of the test that gave it."""

    p: float
    method: str


def flip_test(totals: Sequence[float], seed: int = 0) -> PValue:
    """The test of whether the differences' sum is 0 but for chance.

    Exact where all choices of signs can be counted, and otherwise (1 + hits) / (1 + 10,000) of random ones (Phipson and
    Smyth, Statistical Applications in Genetics and Molecular Biology 9, 2010).

    Args:
        totals: the difference of each prompt, or the summed differences of each cluster.
        seed: of the random choices.
    """
    largest = max(map(abs, totals), default=0.0)
    if not largest:
        return PValue(1.0, "nothing differs")
    units = [round(each / largest, _DIGITS) for each in totals]
    observed = abs(math.fsum(units)) - 10.0**-_DIGITS * len(units)
    sizes = Counter(abs(each) for each in units if each)
    if (sums := _all_sums(sizes)) is None:
        hits = sum(abs(each) >= observed for each in _random_sums(list(sizes.elements()), seed))
        return PValue((1 + hits) / (1 + FLIPS), f"{FLIPS:,} random sign flips")
    p = math.fsum(share for each, share in sums.items() if abs(each) >= observed)
    return PValue(min(1.0, p), EXACT)


def _all_sums(sizes: Counter[float]) -> dict[float, float] | None:
    """How often each sum occurs among all choices of signs; None if there are too many.

    Args:
        sizes: how many differences have each size.
    """
    sums, work = {0.0: 1.0}, 0
    for size, count in sizes.items():
        work += len(sums) * (count + 1)
        if work > _MOST_SUMS:
            return None
        shares = list(_shares(count))
        longer: dict[float, float] = {}
        for start, before in sums.items():
            for minus, share in enumerate(shares):
                end = round(start + size * (count - 2 * minus), _DIGITS)
                longer[end] = longer.get(end, 0.0) + before * share
        sums = longer
    return sums


def _shares(count: int) -> Iterator[float]:
    """Binomial probabilities of 0 to `count` minus signs."""
    whole = math.lgamma(count + 1) - count * math.log(2)
    return (math.exp(whole - math.lgamma(each + 1) - math.lgamma(count - each + 1)) for each in range(count + 1))


def _random_sums(sizes: Sequence[float], seed: int) -> Iterator[float]:
    """Sums with random signs: each random byte looks up the sum of eight differences."""
    chance = Random(seed)
    tables = [_signed_sums(sizes[start : start + _BITS]) for start in range(0, len(sizes), _BITS)]
    return (sum(map(getitem, tables, chance.randbytes(len(tables)))) for _ in range(FLIPS))


def _signed_sums(sizes: Sequence[float]) -> list[float]:
    """The sums of up to eight differences for all 256 bytes, whose bits are their signs."""
    sums = [0.0]
    for size in [*sizes, *[0.0] * (_BITS - len(sizes))]:
        sums = [each + sign * size for each in sums for sign in (-1, 1)]
    return sums
