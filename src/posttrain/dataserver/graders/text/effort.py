"""How much work an expression is for SymPy, estimated without doing any of it.

A completion that keeps a grader busy until its deadline has no score, which is more than a wrong one has.
"""

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sympy import Basic, MatrixBase, Pow, Product, Sum

_MOST_TERMS = 300
_MOST_STEPS = 100
_MOST_BITS = 500_000
_MOST_BITS_OF_AN_EXPONENT = 64
_MOST_BITS_UNDER_A_ROOT = 3_500  # roots are simplified by looking for factors


class _HeavyError(Exception):
    """More than can be worked out in a second or so."""


class _Size(NamedTuple):
    bits: float
    """Of the number that it is; small for what is none."""
    terms: int
    """When powers and products of sums are multiplied out."""
    is_rational: bool
    """Whether it is worked out with + − × ÷ alone, to one number."""
    steps: int = 1
    """Of the sums and products over ranges in it, one within the other."""


def is_heavy(parsed: "Basic | MatrixBase") -> bool:
    """Whether working it out could take seconds or hours: it is too long for an answer then."""
    try:
        _size(parsed)
    except (_HeavyError, OverflowError):
        return True
    return False


def _size(node: "Basic | MatrixBase") -> _Size:
    from sympy import Add, Expr, Float, MatrixBase, Mul, Pow, Product, Rational, Sum, factorial

    if isinstance(node, Rational):
        return _Size(node.p.bit_length() + node.q.bit_length(), 1, is_rational=True)
    if isinstance(node, Float):
        return _Size(64, 1, is_rational=True)
    parts = [_size(part) for part in (node.flat() if isinstance(node, MatrixBase) else node.args)]
    if not parts:
        return _Size(2, 1, is_rational=False)
    bits, is_rational = max(part.bits for part in parts), all(part.is_rational for part in parts)
    terms, steps = sum(part.terms for part in parts), max(part.steps for part in parts)
    match node:
        case Sum() | Product():
            steps *= _steps(node)
        case Mul():
            bits, terms = sum(part.bits for part in parts), math.prod(part.terms for part in parts)
        case Pow():
            bits, terms, is_rational = _power(node, *parts)
        case factorial():
            bits, is_rational = bits * 2.0**bits, False
        case Add():
            bits += len(parts)
        case Expr():
            bits, terms, is_rational = 64, max(part.terms for part in parts), False
        case _:  # a set, an equation, a matrix
            terms = max(part.terms for part in parts)
    _require(bits <= _MOST_BITS and steps <= _MOST_STEPS and terms <= _MOST_TERMS)
    return _Size(bits, 1 if is_rational else terms, is_rational, int(steps))


def _power(power: "Pow", base: _Size, exponent: _Size) -> tuple[float, int, bool]:
    """Bits, terms, and whether it is rational."""
    times = power.exp.doit() if exponent.is_rational and exponent.bits < _MOST_BITS_OF_AN_EXPONENT else power.exp
    if times.is_Integer:
        count = abs(int(times))
        return base.bits * count, math.comb(count + base.terms - 1, base.terms - 1), base.is_rational
    _require(base.bits <= _MOST_BITS_UNDER_A_ROOT)
    return base.bits * (abs(float(times)) if times.is_Rational else 2.0**exponent.bits), base.terms, False


def _steps(ranged: "Sum | Product") -> float:
    """How many terms a sum or product over ranges has; infinity where a bound is no number."""
    ranges = [limit[1:] for limit in ranged.limits]
    if not all(len(bounds) == 2 and all(bound.is_Integer for bound in bounds) for bounds in ranges):
        return math.inf
    return math.prod(max(1, int(high - low) + 1) for low, high in ranges)


def _require(is_bearable: bool) -> None:
    if not is_bearable:
        raise _HeavyError
