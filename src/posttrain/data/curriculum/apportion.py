"""Turn the weights of a stage into whole numbers of slots, so that the rest of the curriculum is exact."""

import math
from collections.abc import Mapping
from fractions import Fraction

from posttrain.errors import ConfigError

MAX_PERIOD = 2**16
"""Slots in the longest period. It bounds the tables' memory, and the smallest share that can be kept."""


def integer_shares(weights: Mapping[str, float]) -> dict[str, int]:
    """Return n_d with n_d / Σn = w_d / Σw, by name, with Σn ≤ 2**16 and without the data sets of weight zero.

    Exact where a common denominator allows (0.7 and 0.3 give 7 and 3). Else Σn = 2**16 by the method of
    largest remainders, which moves each share by less than 2**-16.

    Raises:
        ConfigError: a weight is negative or not finite, none is positive, or one is too small to be kept.
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
    # By way of its decimals: 0.1 stands for one tenth, not for the binary fraction nearest to it.
    return Fraction(str(weight))


def _largest_remainders(shares: Mapping[str, Fraction]) -> dict[str, int]:
    quotas = {name: share * MAX_PERIOD for name, share in shares.items()}
    counts = {name: math.floor(quota) for name, quota in quotas.items()}
    missing = MAX_PERIOD - sum(counts.values())
    # The sort is stable and the names come sorted, so that equal remainders go by name.
    for name in sorted(counts, key=lambda name: counts[name] - quotas[name])[:missing]:
        counts[name] += 1
    for name, count in counts.items():
        if count == 0:
            raise ConfigError(
                f"data set {name!r}: its share of the stage, {float(shares[name]):.2g}, is less than "
                f"one row in {MAX_PERIOD}; raise its weight, or leave it out"
            )
    return counts
