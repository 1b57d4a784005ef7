"""LaTeX that the parser of Math-Verify would misread: units, repeating decimals, numbers that stand side by side."""

import re
from collections.abc import Iterator
from fractions import Fraction

_SPACE = r"(?:\s|~|\\[,;:!>\ ]|\\(?:q?quad|thinspace|medspace|thickspace|enspace)(?![A-Za-z]))"
_TEXT = r"\\(?:text|textrm|textnormal|textit|textbf|mathrm|mbox)\s*"
_POWER = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|[0-9]))?"

# Not a letter that stands for itself (\mathrm{e}), and not `or` and the like.
_NAMED_UNIT = rf"{_TEXT}\{{(?!\s*(?:[deiT]|(?:and|or|to)\b[^{{}}]*)\s*\}})[^{{}}]*[^\W\d_][^{{}}]*\}}{_POWER}"
_NAMED_UNITS = re.compile(
    rf"(?<=[^\s=+\-*/^_({{\[,<>]){_SPACE}*{_NAMED_UNIT}(?:{_SPACE}*(?:/|\\cdot)?{_SPACE}*{_NAMED_UNIT})*\s*\Z"
)
# After an amount without letters, and so that `5t` and `\pi r^2 h` keep theirs.
_AMOUNT = r"(?:[A-Za-z]\s*=)?[^A-Za-z=]*(?:\\[dt]?frac[^A-Za-z=]*)?[0-9}]"
_LETTER_UNIT = re.compile(rf"({_AMOUNT}){_SPACE}+[msghlLNJWVAKCF]{_POWER}\s*")
_GLUED_UNIT = re.compile(rf"({_AMOUNT}){_SPACE}*[msghlLNJWVAKCF]{_POWER}\s*")

_REPEATING = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*(?:\{([0-9]+)\}|([0-9]))(?![0-9])")

_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,)(?=[0-9]{3}(?![0-9]))")
_DRESSING = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|[hv]?phantom)(?![A-Za-z])")
_BLANK = re.compile(
    rf"{_SPACE}|\\(?:hspace|hskip|kern)\*?\s*(?:\{{[^{{}}]*\}}|-?[0-9.]+\s*[a-z]{{2}})"
    rf"|{_TEXT}\{{\s*\}}|\{{\s*\}}|\^\s*(?:\\circ(?![A-Za-z])|\{{\s*\\circ\s*\}})|['\"]"
)
_ARGUMENT = r"\s*(?:\{[^{}]*\}|\\[A-Za-z]+|[^\s{}])"
_SCRIPTS = (
    (re.compile(rf"\|(?:\s*[_^]{_ARGUMENT})+"), " "),
    (re.compile(rf"\^{_ARGUMENT}"), "'"),
    (re.compile(rf"_{_ARGUMENT}"), " "),
)
_OPERATOR = re.compile(
    r"\\(?:times|cdot|ast|div|pm|mp|l[et]q?|g[et]q?|neq?|approx|equiv|sim|in|to|[lr]?[vV]ert|[lr](?:floor|ceil))(?![A-Za-z])"
)
_NAMED_BRACKET = re.compile(r"\\([lr])(?:brace|brack|paren|angle)(?![A-Za-z])")
_BEFORE_ARGUMENT = re.compile(r"(?<=[}A-Za-z])\s+(?=[{\[])")
_TWO = r"\\(?:[dtc]?frac|[dt]?binom)\s*"
_SHORT_ARGUMENTS = (
    (re.compile(rf"({_TWO})([0-9])"), r"\1{\2}"),
    (re.compile(rf"({_TWO}\{{[^{{}}]*\}}\s*)([0-9])"), r"\1{\2}"),
    (re.compile(r"(\\sqrt\s*)([0-9])"), r"\1{\2}"),
)
_MIXED = re.compile(r"(?<![0-9.])[0-9]+\s*\\[dtc]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_LITERAL = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
# In what follows \0 stands for a number and \1 for any other value. What holds others comes last, when they are simple.
_REDUCTIONS = (
    (re.compile(rf"{_TWO}\{{\s*\0\s*\}}\s*\{{\s*\0\s*\}}|\\(?:max|min|gcd|lcm)\s*\(\s*\0(?:\s*,\s*\0)*\s*\)"), "\0"),
    (re.compile(r"(?<![}\]A-Za-z])(?:\{|(?<!')[(\[])\s*\0\s*[)}\]]|\\\{\s*\0\s*\\\}"), "\0"),
    (re.compile(rf"(?:{_TWO}\{{[^{{}}]*\}}|\\[A-Za-z]+\s*(?:\[[^\][]*\]\s*)?)\{{[^{{}}]*\}}"), "\1"),
)
_SIDE_BY_SIDE = re.compile(r"\0\s*\0")


def without_unit(latex: str, glued: bool = False) -> str:
    """The expression without a unit at its end: `\\text{cm}`, or one letter after a number and a space.

    `glued`: the space may be missing.
    """
    named = _NAMED_UNITS.sub("", latex)
    lettered = (_GLUED_UNIT if glued else _LETTER_UNIT).fullmatch(named)
    return lettered[1] if lettered else named


def with_fractions(latex: str) -> str:
    """The expression with repeating decimals as fractions."""
    return _REPEATING.sub(_fraction, latex)


def has_numbers_side_by_side(latex: str) -> bool:
    """Whether nothing but space or brackets stands between two numbers, which Math-Verify would add up.

    A whole number before a proper fraction is one mixed number.
    """
    text = _BLANK.sub(" ", _DRESSING.sub("", _THOUSANDS.sub("", latex.replace(r"\\!", " ").replace(r"\\", ";"))))
    text = _NAMED_BRACKET.sub(lambda found: "(" if found[1] == "l" else ")", text)
    *_, text = _steps(_BEFORE_ARGUMENT.sub("", _OPERATOR.sub("*", text)), _SCRIPTS)
    for short, braced in _SHORT_ARGUMENTS:
        text = short.sub(braced, text)
    text = _MIXED.sub(lambda found: "\0" if int(found[1]) < int(found[2]) else found[0], text)
    return any(_SIDE_BY_SIDE.search(step) for step in _steps(_LITERAL.sub("\0", text), _REDUCTIONS))


def _steps(text: str, replacements: tuple[tuple[re.Pattern[str], str], ...]) -> Iterator[str]:
    """The text before and after each replacement, always the first that changes it, until none does."""
    changed: str | None = text
    while changed is not None:
        text = changed
        yield text
        results = (pattern.sub(replacement, text) for pattern, replacement in replacements)
        changed = next((result for result in results if result != text), None)


def _fraction(decimal: re.Match[str]) -> str:
    whole, fixed, cycle = decimal[1], decimal[2], decimal[3] or decimal[4]
    without = int(f"{whole}{fixed}" or "0")
    value = Fraction(int(f"{whole}{fixed}{cycle}") - without, 10 ** len(fixed) * (10 ** len(cycle) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
