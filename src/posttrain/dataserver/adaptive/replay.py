"""Choose earlier rows to ask again, by a bandit over rows."""

from hashlib import blake2b
from heapq import nsmallest

import numpy as np
import numpy.typing as npt

from posttrain.dataserver.journal.plans import RowKey, Statistics

Numbers = npt.NDArray[np.float64]

# Rows whose bounds differ only by the order in which the database added their rewards are equal.
_DECIMALS = 9


def upper_bounds(means: Numbers, counts: Numbers, total: int, exploration: float) -> Numbers:
    """v + exploration·√(ln N / n) with v = 4p(1 − p), for rows with the mean reward p and n of all N grades.

    v is 1 where half of the completions succeed, and the rewards of a group differ most; it is 0 where all or none
    do, and GRPO learns nothing.

    Source: UCB1 in P. Auer, N. Cesa-Bianchi and P. Fischer, "Finite-time Analysis of the Multiarmed Bandit
    Problem", Machine Learning 47 (2002), 235-256, where the mean reward of an arm stands for v and exploration
    is √2.
    """
    solved = np.clip(means, 0.0, 1.0)
    return 4 * solved * (1 - solved) + exploration * np.sqrt(np.log(total) / counts)


def best_rows(candidates: Statistics, total: int, exploration: float, limit: int, salt: bytes) -> list[RowKey]:
    """At most `limit` rows with the highest bounds, the highest first; a hash with the salt decides between equals.

    Args:
        total: how many grades there are, also of rows that are no candidates.
        salt: at most 64 bytes.
    """
    if not candidates or limit < 1:
        return []
    keys = list(candidates)
    means = np.array([row.mean for row in candidates.values()])
    counts = np.array([row.count for row in candidates.values()], dtype=np.float64)
    bounds = np.round(upper_bounds(means, counts, total, exploration), _DECIMALS)
    cut = max(0, len(keys) - limit)
    # Only rows that are as good as the last one wanted are looked at one by one.
    chosen = np.flatnonzero(bounds >= np.partition(bounds, cut)[cut])
    ranks = ((-bounds[place], _tie(keys[place], salt), keys[place]) for place in chosen.tolist())
    return [key for _, _, key in nsmallest(limit, ranks)]


def _tie(key: RowKey, salt: bytes) -> bytes:
    return blake2b("\0".join(key).encode("utf-8", "surrogatepass"), digest_size=8, key=salt).digest()
