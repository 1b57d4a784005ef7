"""Grader `math_verify`: check that the answer is mathematically equal to the gold."""

import re
from decimal import Context
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from posttrain.config.keys import shown
from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags
from posttrain.dataserver.graders.text.expressions import Expression, find_expressions
from posttrain.dataserver.graders.text.extraction import Extract, extract
from posttrain.dataserver.graders.text.mathematics import (
    are_equal,
    can_be_parsed,
    is_as_simple,
    is_definite,
    is_heavy,
    parse,
    set_of,
    sides,
)
from posttrain.dataserver.graders.text.numbers import spelled
from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.dataserver.graders.text.mathematics import Parsed

# What the parser ignores (a base, modulus or approximation) or evaluates (an interval that is one point).
_BASE = re.compile(r"[0-9]\s*_\s*\{?\s*(\w*)")
_PASSED_OVER = re.compile(r"\\[bp]?mod(?![A-Za-z])|[0-9)}\]]\s*\\approx(?![A-Za-z])")
_EXACT = Context(prec=12_000)  # more digits than any number that is read
_INTERVAL = re.compile(r"\s*(?:\\left\s*)?\[[^,]*,")


class MathVerify(TextGrader):
    r"""1 if the answer is mathematically equal to the gold (by Math-Verify and SymPy), else 0.

    The answer is the content of `\boxed{…}`; else the last expression between `$…$`, `\(…\)` and the like; else the
    whole text, if it can be parsed as an expression; else the last number or fraction in the prose. Several boxes, and
    expressions listed with commas, `and` or `or`, form a set, which equals no single gold; alternatives worded in
    another way do not, and the last one counts. A number after `minus`, or after a detached minus sign in prose, is not
    read, nor is one before `million` and the like, nor one with a base, a modulus or `\approx` that the gold lacks. 1/2
    equals 0.5, x = 5 equals 5, 50% equals both 0.5 and 50, and decimals are compared with other forms to six places.

    Adjacent letters are a product (`xy`, `2ab`), unless they are a short word or a unit, or more than two that are not
    consecutive in the alphabet. Units are ignored: `\text{…}` at the end, one letter after a number and a space (`5
    m`), and, if the gold is a number, also without the space (`5m`); `5t` as a gold keeps its t. A base that the answer
    leaves out is assumed. Adjacent numbers are neither a sum nor a product, and are not read; a whole number before a
    proper fraction is a mixed number.

    Expressions of more than 500 characters, with brackets nested more than 8 deep, or with towers of powers are not
    read either. One that would take SymPy seconds to evaluate, such as `(1+x)^{9999}` or a sum of more than 100 terms,
    is right only if it is written exactly like the gold. What still takes too long ends at the grader's deadline,
    without a score.
    """

    type: Literal["math_verify"] = "math_verify"

    extract: Extract = "all"
    """The part of the answer to search for the expression."""

    require_simplified: bool = False
    """Whether the answer must be written as simply as the gold. Without this, repeating the question is right: 6+1 is
    7. A rational number must be a plain number or a fraction in lowest terms."""

    max_answer_chars: int = Field(default=2000, ge=1)
    """How many characters, from the end, are searched for an answer that is not boxed."""

    needs_gold: ClassVar[bool] = True
    is_correctness: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("math-verify", "latex2sympy2_extended", "sympy", "google-re2")
    preload: ClassVar[tuple[str, ...]] = ("math_verify",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example(r"The answer is \boxed{72}.", 1.0, gold="72"),
        Example(r"The answer is \boxed{73}.", 0.0, gold="72"),
        Example("So she sold 72 clips.", 1.0, gold=72, note="prose: the last number"),
        Example(r"$\frac{1}{2}$", 1.0, gold="1/2"),
        Example("0.5", 1.0, gold=r"\frac{1}{2}"),
        Example("The share is 2/4.", 1.0, gold=r"$\frac{1}{2}$"),
        Example("1,234.0", 1.0, gold="$1234$"),
        Example(r"x = 5", 1.0, gold="5"),
        Example(r"\boxed{72\text{ cm}}", 1.0, gold="72", note="units are ignored"),
        Example(r"\boxed{5 m}", 1.0, gold="5"),
        Example("8''", 1.0, gold="8", note="such as inches"),
        Example("5", 0.0, gold="5t", note="but a variable is not"),
        Example("$yx$", 1.0, gold="xy", note="a product of letters"),
        Example(r"\boxed{\frac{1+\sqrt5}{2}, \frac{1-\sqrt5}{2}}", 1.0, gold=r"\frac{1\pm\sqrt{5}}{2}"),
        Example(r"$\frac{1}{3}$", 1.0, gold=r"0.\overline{3}"),
        Example("#### 72", 1.0, gold="72", note="not an expression, so it is prose"),
        Example("A: 72", 1.0, gold="72"),
        Example("-10%", 1.0, gold="-10"),
        Example("50%", 1.0, gold="0.5"),
        Example("50", 1.0, gold=r"50\%"),
        Example(r"$\sqrt{8}$", 1.0, gold=r"2\sqrt{2}"),
        Example("2", 0.0, gold=r"2\sqrt{2}"),
        Example(r"$e^{i\pi}$", 0.0, gold="-1", note="i is a letter like any other"),
        Example(r"$2x + x^2 + 1$", 1.0, gold="(x+1)^2"),
        Example(r"\boxed{2, 1}", 1.0, gold=r"\{1, 2\}"),
        Example("$[1, 2)$", 0.0, gold="$(1, 2)$", note="half-open is not open"),
        Example(r"\boxed{7} or \boxed{8}", 0.0, gold="7", note="several boxes form a set"),
        Example("7 or 8", 0.0, gold="8", note="and so does a list"),
        Example("1, 2, 3, 4, 5, 6, 7", 0.0, gold="7"),
        Example("x=8 or x=7", 0.0, gold="7"),
        Example("9 and/or 8", 0.0, gold="8"),
        Example("8 or $7$", 0.0, gold="7"),
        Example("**8** or **7**", 0.0, gold="7"),
        Example("8, or better 7", 1.0, gold="7", note="other words withdraw the 8"),
        Example(r"\boxed{-\,7}", 1.0, gold="-7"),
        Example("minus 7", 0.0, gold="7", note="a sign in words, or a detached one in prose, is not read"),
        Example("- $7", 0.0, gold="7"),
        Example(r"\boxed{7-}", 0.0, gold="7"),
        Example(r"\boxed{7\approx 8}", 0.0, gold="7"),
        Example(r"\boxed{7\mod 8}", 0.0, gold="7"),
        Example(r"\boxed{7_8}", 0.0, gold="7", note="the base is not read"),
        Example(r"\boxed{42}", 1.0, gold="42_8", note="and may be left out"),
        Example(r"\boxed{42_9}", 0.0, gold="42_8"),
        Example(r"\boxed{7\text{ million}}", 0.0, gold="7", note="a different number"),
        Example("$7$ million", 0.0, gold="7"),
        Example("seventy-two", 0.0, gold="72", note="nor are words, digits of other scripts, or digits in a word"),
        Example("７２", 0.0, gold="72"),
        Example("72km", 0.0, gold="72"),
        Example(r"\boxed{0x48}", 0.0, gold="0"),
        Example(r"\boxed{[7,7]}", 0.0, gold="7", note="an interval is not a number"),
        Example("8 = 7", 0.0, gold="7"),
        Example("3 + 4 = 7", 1.0, gold="7"),
        Example("7 8", 0.0, gold="56", note="two numbers are not a product"),
        Example(r"\boxed{48\ 24}", 0.0, gold="72", note="nor a sum"),
        Example(r"\boxed{48(24)}", 0.0, gold="72"),
        Example(r"\boxed{2\frac{1}{2}}", 1.0, gold="2.5", note="a mixed number"),
        Example("1 234", 0.0, gold="1234", note="a space does not separate thousands"),
        Example("3.14.15", 0.0, gold="3.14"),
        Example(r"\boxed{x72}", 0.0, gold="72"),
        Example(r"\boxed{6+1}", 1.0, gold="7", note="the question repeated: equal by default"),
        Example(r"\boxed{6+1}", 0.0, gold="7", params={"require_simplified": True}),
        Example(r"\boxed{\int_0^{12} 1 dx}", 0.0, gold="12", params={"require_simplified": True}),
        Example(r"\boxed{\frac{14}{2}}", 0.0, gold="7", params={"require_simplified": True}),
        Example(r"\boxed{x = \frac{1}{2}}", 1.0, gold="0.5", params={"require_simplified": True}),
        Example(r"\boxed{x + 6 + 1}", 0.0, gold="x + 7", params={"require_simplified": True}),
        Example(r"\boxed{7 + x}", 1.0, gold="x + 7", params={"require_simplified": True}),
        Example(
            r"$\sqrt{8}$", 1.0, gold=r"2\sqrt{2}", params={"require_simplified": True}, note="no longer than the gold"
        ),
        Example(r"$2\sqrt{2}$", 0.0, gold=r"\sqrt{8}", params={"require_simplified": True}),
        Example(r"$9^{9^{9^9}}$", 0.0, gold="9", note="too large to read"),
        Example(r"\boxed{(1+x)^{9999}}", 0.0, gold="72", note="too expensive to evaluate"),
        Example(r"$(1+x)^{9999}$", 1.0, gold="(1+x)^{9999}"),
        Example(r"\boxed{\sum_{n=1}^{9999}\frac{1}{n^3}}", 0.0, gold="72"),
        Example("48+24=72\n#### 72", 1.0, gold="72", params={"extract": {"after": "####"}}),
        Example("<think>It is 72.</think>I do not know", 0.0, gold="72", tags=ReasoningTags()),
        Example("", 0.0, gold="0"),
    )

    def load(self) -> None:
        """Warm up the parser, which takes a second for its first expression."""
        parse(r"\frac{1}{2}")

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the gold is one expression that can be parsed."""
        _read_gold(item.gold)

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """1 or 0."""
        gold = _read_gold(item.gold)
        part = extract(text, self.extract)
        answers = find_expressions(part, self.max_answer_chars, can_be_parsed) if part else []
        if not answers:
            return Score(0.0, "no expression that can be read")
        if len(answers) == 1 and gold.number is not None and answers[0].number is not None:
            return float(_is_same_number(answers[0], gold))
        if any(_is_misread(answer.latex, gold) for answer in answers):
            return Score(0.0, "a base, a modulus, an approximation or an interval that is not in the gold")
        return self._compare(answers, gold)

    def _compare(self, answers: list[Expression], gold: Expression) -> Score | float:
        rights = [right for right in map(parse, _spellings(gold)) if right is not None]
        has_letters = any(right.free_symbols for right in rights)
        parsed = [[parse(latex, glued_unit=not has_letters) for latex in _spellings(answer)] for answer in answers]
        known = [[each for each in spelled if each is not None] for spelled in parsed]
        if not rights or not all(known):
            return Score(0.0, "not an expression that can be parsed")
        givens = known[0] if len(known) == 1 else [set_of([each[0] for each in known])]
        if any(map(is_heavy, (*rights, *givens))):
            return Score(float(rights == givens), "too expensive to evaluate, so right only if written like the gold")
        equal = [(given, right) for given in givens for right in rights if _are_equal(given, right, _places(gold))]
        if equal and self.require_simplified and not is_as_simple(answers, *equal[0]):
            return Score(0.0, "equal, but not in simplest form")
        return float(bool(equal))


def _are_equal(given: "Parsed", right: "Parsed", places: int) -> bool:
    return all(are_equal(right, side, places) for side in (given, *sides(given)))


def _spellings(expression: Expression) -> tuple[str, ...]:
    """The LaTeX of the expression; for a percentage, the number itself and as hundredths."""
    value = expression.number
    if value is None or not expression.percent:
        return (expression.latex,)
    return (f"{value:f}", f"{value.scaleb(-2, _EXACT):f}")


def _is_same_number(given: Expression, gold: Expression) -> bool:
    one, other = given.number, gold.number
    assert one is not None and other is not None
    if given.percent == gold.percent:
        return one == other
    return one == other or (one == other.scaleb(2, _EXACT) if given.percent else other == one.scaleb(2, _EXACT))


@lru_cache(maxsize=16384)
def _gold_expression(gold: str) -> Expression | None:
    found = find_expressions(gold, len(gold), can_be_parsed, only=True)
    if len(found) != 1:
        return None
    parsed = None if found[0].number is not None else parse(found[0].latex)
    return found[0] if found[0].number is not None or is_definite(parsed) else None


def _read_gold(gold: object) -> Expression:
    if isinstance(gold, bool) or not isinstance(gold, str | int | float):
        raise DataError(f"the gold must be a text or a number, not {shown(gold)}")
    expression = _gold_expression(spelled(gold))
    if expression is None:
        raise DataError(f"the gold must be one expression, as LaTeX or plain (72, 1/2), not {shown(gold)}")
    return expression


def _is_misread(latex: str, gold: Expression) -> bool:
    if gold.number is not None and _INTERVAL.match(latex):
        return True
    if set(_BASE.findall(latex)) - set(_BASE.findall(gold.latex)):
        return True
    return bool(_PASSED_OVER.search(latex)) and not _PASSED_OVER.search(gold.latex)


def _places(gold: Expression) -> int:
    """Decimal places to compare: six, or for a gold below 1 six after its first digit, so that 0.0000001 is not 0."""
    number = gold.number
    return 6 - number.adjusted() if number and abs(number) < 1 else 6
