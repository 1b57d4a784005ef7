"""LaTeX that the parser of Math-Verify would misread: units, repeating decimals, numbers that stand side by side."""

import re
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
_DRESSING = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle)(?![A-Za-z])")
_BLANK = re.compile(
    rf"{_SPACE}|\\[hv]?phantom\s*\{{[^{{}}]*\}}|\\(?:hspace|hskip|kern)\*?\s*(?:\{{[^{{}}]*\}}|-?[0-9.]+\s*[a-z]{{2}})"
    rf"|{_TEXT}\{{\s*\}}|\{{\s*\}}"
)
_SCRIPT = re.compile(r"[_^]\s*(?:\{[^{}]*\}|\\[A-Za-z]+|[^\s{}])")
_TWO = r"\\(?:[dtc]?frac|[dt]?binom)\s*"
_SHORT_ARGUMENTS = (
    (re.compile(rf"({_TWO})([0-9])"), r"\1{\2}"),
    (re.compile(rf"({_TWO}\{{[^{{}}]*\}}\s*)([0-9])"), r"\1{\2}"),
    (re.compile(r"(\\sqrt\s*)([0-9])"), r"\1{\2}"),
)
_MIXED = re.compile(r"(?<![0-9.])[0-9]+\s*\\[dtc]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}")
_LITERAL = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
# In what follows \0 stands for a number and \1 for any other value.
_REDUCTIONS = (
    (re.compile(rf"{_TWO}\{{\s*\0\s*\}}\s*\{{\s*\0\s*\}}|\\(?:max|min|gcd|lcm)\s*\(\s*\0(?:\s*,\s*\0)*\s*\)"), "\0"),
    (re.compile(r"\\[A-Za-z]+\s*(?:\[[^\][]*\]\s*)?\{[^{}]*\}(?:\s*\{[^{}]*\})*"), "\1"),
    (re.compile(r"(?<![}\]A-Za-z'])\\?[({\[]\s*\0\s*\\?[)}\]]"), "\0"),
)


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
    text = _BLANK.sub(" ", _DRESSING.sub("", _THOUSANDS.sub("", latex.replace(r"\\", ";"))))
    text = _until_stable(text, ((_SCRIPT, "'"),))
    for short, braced in _SHORT_ARGUMENTS:
        text = short.sub(braced, text)
    text = _MIXED.sub(lambda found: "\0" if int(found[1]) < int(found[2]) else found[0], text)
    text = _until_stable(_LITERAL.sub("\0", text), _REDUCTIONS)
    return re.search(r"\0\s*\0", text) is not None


def _until_stable(text: str, replacements: tuple[tuple[re.Pattern[str], str], ...]) -> str:
    before = ""
    while text != before:
        before = text
        for pattern, replacement in replacements:
            text = pattern.sub(replacement, text)
    return text


def _fraction(decimal: re.Match[str]) -> str:
    whole, fixed, cycle = decimal[1], decimal[2], decimal[3] or decimal[4]
    without = int(f"{whole}{fixed}" or "0")
    value = Fraction(int(f"{whole}{fixed}{cycle}") - without, 10 ** len(fixed) * (10 ** len(cycle) - 1))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
