"""The smallest difference that a comparison would have told, had it been there."""

import math
from collections.abc import Sequence

from posttrain.base.intervals.spread import Cluster, spread
from posttrain.base.intervals.student import t_quantile

LEVEL = 0.05
POWER = 0.8


def smallest_difference(clusters: Sequence[Cluster], models: int, largest: float | None) -> float | None:
    """The mean difference that is told from 0 in 80 % of cases, with the spread that was observed.

    (t₁ + t₂)·√(Σ eₖ²) / N over the clusters' summed differences eₖ, with t₁ for a two-sided test at 5 % divided by the
    number of models, as for the first step of Holm's adjustment, and t₂ for 80 %.

    An exact test needs a number of clusters that changed in one direction: 6 for one model, since 2/2⁶ < 5 %. If fewer
    changed than must be expected for that in 80 % of cases, their spread says little, and the difference is at least
    that expected number of changes, each as large as the observed ones.

    Args:
        models: how many are compared with the baseline.
        largest: the size of a change if none was observed; None if there is no such size.

    Returns:
        None if nothing changed and there is no size for a change.
    """
    found = spread(clusters)
    freedom, level = max(1, int(found.equal_clusters) - 1), LEVEL / models
    squares = math.fsum(each.total**2 for each in clusters)
    changed = sum(each.total != 0 for each in clusters)
    quantiles = t_quantile(freedom, 1 - level) + t_quantile(freedom, 2 * POWER - 1)
    usual = quantiles * math.sqrt(squares) / found.prompts
    share = _needed_share(len(clusters), math.ceil(math.log2(2 / level)))
    if changed >= share * len(clusters):
        return usual
    if changed:
        largest = math.sqrt(squares / changed) * len(clusters) / found.prompts
    return None if largest is None else max(usual, share * largest)


def _needed_share(count: int, needed: int) -> float:
    """The share of `count` clusters that must change on average so that `needed` do in 80 % of cases; at most 1."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        fewer = math.fsum(
            math.comb(count, each) * middle**each * (1 - middle) ** (count - each)
            for each in range(min(needed, count + 1))
        )
        low, high = (low, middle) if fewer <= 1 - POWER else (middle, high)
    return high
