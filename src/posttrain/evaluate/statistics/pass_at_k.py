"""pass@k: the chance that at least one of k answers is right."""

import math
from collections.abc import Sequence


def pass_at_k(answers: int, right: int, k: int) -> float:
    """1 - C(n - c, k) / C(n, k): the share of the choices of k answers, of n with c right ones, that have a right one.

    Unbiased, unlike 1 - (1 - c/n)^k (Chen et al., arXiv:2107.03374, eq. 1). Computed from whole numbers, so it is exact
    for any n.

    Raises:
        ValueError: there are fewer than k answers, or more right ones than answers.
    """
    if not 1 <= k <= answers or not 0 <= right <= answers:
        raise ValueError(f"pass@{k} of {answers} answers with {right} right ones is not defined")
    ways = math.comb(answers, k)
    return (ways - math.comb(answers - right, k)) / ways


def prompt_pass_at_k(rewards: Sequence[float], k: int) -> float | None:
    """pass@k of a prompt's graded answers, of which those with reward 1 are right; None if there are fewer than k."""
    return pass_at_k(len(rewards), sum(each == 1 for each in rewards), k) if len(rewards) >= k else None
