"""Holm's adjustment of p-values, for several models that are compared with one baseline."""

from collections.abc import Mapping


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """p-values of which all up to 5 % may be believed at once: the chance that any of these is wrong is at most 5 %.

    The i-th smallest of m is multiplied by m - i + 1, and none is smaller than the one before (Holm, Scandinavian
    Journal of Statistics 6, 1979).
    """
    adjusted, least = {}, 0.0
    for place, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        least = max(least, min(1.0, (len(p_values) - place) * p_values[name]))
        adjusted[name] = least
    return {name: adjusted[name] for name in p_values}
