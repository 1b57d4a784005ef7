"""Parse and compare expressions with Math-Verify, and test whether they are in simplest form.

The cost of evaluating an expression in SymPy is estimated without evaluating it: a completion that keeps a grader busy
until its deadline gets no score, which is better than the score of a wrong one.

Nothing here has a timeout: Math-Verify's own would replace the SIGALRM timer of the grading process, and works only in
the main thread.
"""

import logging
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from posttrain.dataserver.graders.text.expressions import Expression, with_fractions, without_unit
from posttrain.dataserver.graders.text.numbers import parse_number

if TYPE_CHECKING:
    from sympy import Basic, MatrixBase

    Parsed = Basic | MatrixBase
    from sympy import Basic, MatrixBase, Pow, Product, Sum

_FRACTION = re.compile(
    r"-?\s*\\[dt]?frac\s*(?:\{\s*-?(?P<above>[0-9]+)\s*\}|(?P<digit>[0-9]))\s*\{?\s*(?P<below>[0-9]+)\s*\}?"
    r"|-?\s*(?P<left>[0-9]+)\s*/\s*(?P<right>[0-9]+)"
)
_ASSIGNED = re.compile(r"\s*[A-Za-z](?:_\{?\w\}?)?\s*=(?!.*=)\s*", re.DOTALL)
_SPACING = re.compile(r"(?<![0-9])\\[,;:! ]|\\[,;:! ](?![0-9])")
_EITHER_SIGN = re.compile(r"\\(?:pm|mp)(?![A-Za-z])|[±∓]")

_MOST_TERMS = 300
_MOST_STEPS = 100
_MOST_BITS = 500_000
_MOST_BITS_OF_AN_EXPONENT = 64
_MOST_BITS_UNDER_A_ROOT = 3_500  # roots are simplified by factorisation


@lru_cache(maxsize=4096)
def parse(latex: str, glued_unit: bool = False) -> "Parsed | None":
    """Parse an expression into SymPy without evaluating it; None if it cannot be parsed.

    `glued_unit`: one letter right after a number is its unit, as in `5m`.
    """
    latex = with_fractions(without_unit(latex, glued_unit))
    if not latex:
        return None
    parsed = _parse(latex)
    if parsed is None and _EITHER_SIGN.search(latex):
        both = [each for each in map(_parse, _both_signs(latex)) if each is not None]
        return set_of(both) if len(both) == 2 else None
    return parsed


def _both_signs(latex: str) -> tuple[str, str]:
    signs = {"\\pm": "+-", "±": "+-", "\\mp": "-+", "∓": "-+"}
    upper, lower = (_EITHER_SIGN.sub(lambda sign, line=line: signs[sign[0]][line], latex) for line in (0, 1))
    return upper, lower


def can_be_parsed(latex: str) -> bool:
    """Whether an expression can be parsed."""
    return parse(latex) is not None


def _parse(latex: str) -> "Parsed | None":
    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that there is no timeout
    # Math-Verify's own list of units includes single letters, and would strip the h from \\pi r^2 h.
    normal = math_verify.LatexNormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True)
    boxed = (math_verify.LatexExtractionConfig(boxed_match_priority=0, normalization_config=normal),)
    found = math_verify.parse(rf"\boxed{{{latex}}}", boxed, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
    return found[0] if found else None


def are_equal(gold: "Parsed", given: "Parsed", places: int) -> bool:
    """Whether the answer equals the gold; decimals are compared to `places` decimal places."""
    from math_verify import verify

    return verify(gold, given, float_rounding=places, timeout_seconds=None)


def is_definite(parsed: "Parsed | None") -> bool:
    """Whether the expression was parsed and nothing in it is divided by 0."""
    from sympy import nan, zoo

    return parsed is not None and not parsed.has(nan, zoo)


def set_of(expressions: list["Parsed"]) -> "Basic":
    """The set of several answers; an answer that is itself a set adds its elements."""
    from latex2sympy2_extended.sets import FiniteSet

    elements = [each.args if isinstance(each, FiniteSet) else (each,) for each in expressions]
    return FiniteSet(*(element for group in elements for element in group))


def sides(given: "Parsed") -> list["Parsed"]:
    """Both sides of every equation in an expression without unknowns, so that 8 = 7 does not count as 7."""
    from sympy import Eq

    return [] if given.free_symbols else [side for equation in given.atoms(Eq) for side in equation.args]


def is_as_simple(answers: list[Expression], given: "Parsed", gold: "Parsed") -> bool:
    """Whether an answer that equals the gold is written as simply as the gold."""
    from sympy import Eq, Symbol, preorder_traversal

    def value(parsed: "Parsed") -> "Parsed":
        return parsed.rhs if isinstance(parsed, Eq) and isinstance(parsed.lhs, Symbol) else parsed

    right, given = value(gold), value(given)
    worked_out = right.doit()
    if getattr(worked_out, "is_Rational", False) or getattr(worked_out, "is_Float", False):
        return len(answers) == 1 and _is_written_out(answers[0])
    size, most = (sum(1 for _ in preorder_traversal(each)) for each in (given, right))
    return size <= most and given.doit() == worked_out


def _is_written_out(answer: Expression) -> bool:
    """Whether the answer is a plain number or a fraction in lowest terms."""
    latex = _SPACING.sub("", without_unit(_ASSIGNED.sub("", answer.latex, count=1))).strip()
    if answer.number is not None or parse_number(latex) is not None:
        return True
    fraction = _FRACTION.fullmatch(latex)
    if not fraction:
        return False
    above, below = (int(text) for text in fraction.groups() if text)
    return below > 1 and math.gcd(above, below) == 1


class _HeavyError(Exception):
    """The expression would take more than about a second to evaluate."""


class _Size(NamedTuple):
    bits: float
    """Size of its value if it is a number; small otherwise."""
    terms: int
    """Number of terms once powers and products of sums are expanded."""
    is_rational: bool
    """Whether it evaluates to a single number with + − × ÷ alone."""
    steps: int = 1
    """Number of terms of the sums and products over ranges in it, multiplied if they are nested."""


def is_heavy(parsed: "Basic | MatrixBase") -> bool:
    """Whether evaluating the expression could take seconds or hours, which is too long for an answer."""
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
    """The bits, terms and `is_rational` of a power."""
    times = power.exp.doit() if exponent.is_rational and exponent.bits < _MOST_BITS_OF_AN_EXPONENT else power.exp
    if times.is_Integer:
        count = abs(int(times))
        return base.bits * count, math.comb(count + base.terms - 1, base.terms - 1), base.is_rational
    _require(base.bits <= _MOST_BITS_UNDER_A_ROOT)
    return base.bits * (abs(float(times)) if times.is_Rational else 2.0**exponent.bits), base.terms, False


def _steps(ranged: "Sum | Product") -> float:
    """Number of terms of a sum or product over ranges; infinity unless all bounds are integers."""
    ranges = [limit[1:] for limit in ranged.limits]
    if not all(len(bounds) == 2 and all(bound.is_Integer for bound in bounds) for bounds in ranges):
        return math.inf
    return math.prod(max(1, int(high - low) + 1) for low, high in ranges)


def _require(is_bearable: bool) -> None:
    if not is_bearable:
        raise _HeavyError
