"""Find the mathematical expressions that a text answers with, as LaTeX without delimiters.

The search order is: boxes; the content of `$…$`, `$$…$$`, `\\(…\\)` or `\\[…\\]`; a text that is an expression and
nothing else; numbers and fractions in prose. Of boxes, all count; otherwise the last match counts, with those linked to
it by a comma, `and` or `or`: a text that names several candidates has answered with all of them. Text that looks like
an expression but cannot be parsed is prose, unless it contains LaTeX commands. What Math-Verify's parser would misread
is rewritten (units, repeating decimals) or not taken as an expression (numbers side by side).
"""

import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from posttrain.dataserver.graders.text.extraction import find_boxes
from posttrain.dataserver.graders.text.numbers import MULTIPLE_AFTER, MULTIPLES, Numeral, numerals, parse_number

_MAX_LENGTH = 500  # characters of an expression; this and _MAX_DEPTH keep the LaTeX parser under a second
_MAX_DEPTH = 8  # levels of nested brackets
_MAX_ANSWERS = 20
_MAX_DIGITS = 50  # of a number that is written out for the LaTeX parser

_DELIMITED = re.compile(
    r"""
    \\\\                                                       # a line break, not the start of \( or \[
  | \$\$(?P<display>(?:[^$\\]|\\.)+)\$\$
  | \$(?P<inline>(?:[^\s$\\]|\\.)(?:(?:[^$\\]|\\.)*(?:[^\s$\\]|\\.))?)\$(?![0-9])
  | \\\((?P<round>(?:[^\\]|\\[^()])+)\\\)
  | \\\[(?P<square>(?:[^\\]|\\[^\[\]])+)\\\]
    """,
    re.VERBOSE | re.DOTALL,
)
_LINK = re.compile(r"[*_`]{0,3}[\s,;]*(?:or\s+[A-Za-z]\s*=|and/or|and|or)?[\s,;]*[*_`]{0,3}[$€£¥₹]?")
_PROSE_OR = re.compile(r"[0-9][*_`)]{0,3}[\s,;]{0,5}\bor[\s*_`]{1,5}\Z")  # a candidate in prose before one in LaTeX
_UNFINISHED = re.compile(r"[-+=/<>×÷·^]\s*\Z")
_NAMES = re.compile(r"\\(?:text|textbf|textrm|mbox|mathrm|mathbf|operatorname|begin|end)\s*\{[^{}]*\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_HALF = re.compile(r"\s*[=*/<>×÷·]|.*[-=+*/<>×÷·^_]\s*\Z", re.DOTALL)  # e.g. text between two currency signs
# A currency sign; a hexadecimal, octal or binary number; a letter as a label.
_NOT_MATHS = re.compile(r"(?<!\\)\$|(?<![0-9A-Za-z.])0[xXbBoO][0-9A-Fa-f]|\A\s*[A-Za-z]\s*:\s*[-+$0-9\\]")
_LETTERS = re.compile(r"(?P<apart>(?<=[0-9A-Za-z])\s+)?(?P<run>[^\W\d_]{2,})(?P<before>\s+(?=[0-9A-Za-z]))?")
_SHORT_WORDS = re.compile(
    "a[mnst]|b[ey]|do|[gs]o|h[ei]|i[fnst]|m[ey]|no|o[fhknr]|to|u[ps]|vs|we"
    "|[cdkmn]m|ft|yd|mi|[km]g|lb|oz|[cdm]l|hr|kw|hz|[gkm]b|pm"
)
_IN_ORDER = "abcdefghijklmnopqrstuvwxyz"
_BRACKET = re.compile(r"(?P<open>[({\[])|(?P<close>[)}\]])")
_HEAVY = re.compile(
    r"""
    \^ \s* (?:\{[^{}]*\}|[^{}\s]) \s* \^               # a power of a power without braces
  | [0-9] \s* \^ [\s{(]* -? [0-9.]+ \s* \^             # a tower of numbers
  | \^ [\s{(]* -? [0-9]{5,}
  | [0-9]{5,} [)}\s]* !
  | \\[dt]?binom (?! \s* \{[0-9A-Za-z+\-\s]{1,9}\} \s* \{[0-9A-Za-z+\-\s]{1,9}\} | [\s0-9])
  | \\[dt]?binom .* [0-9]{5,}                          # the parser works out binomials and powers of matrices
  | matrix\} (?: \s | \\right | [)}] )* \^ [\s{(]* -? [0-9]{2,}
  | ! [)}\s]* !
    """,
    re.VERBOSE | re.DOTALL,
)
_NAMED_MULTIPLE = re.compile(
    rf"[0-9][^0-9]{{0,20}}\\(?:text|textrm|mathrm|mbox)\s?\{{[\s\\,;:!]{{0,8}}{MULTIPLES}", re.IGNORECASE
)
_DECORATION = " \t\r\n*_`"  # white space and Markdown
_FRACTION = re.compile(r"[0-9]{1,15}/[0-9]{1,15}")

_SPACE = r"(?:\s|~|\\[,;:!>\ ]|\\(?:q?quad|thinspace|medspace|thickspace|enspace)(?![A-Za-z]))"
_TEXT = r"\\(?:text|textrm|textnormal|textit|textbf|mathrm|mbox)\s*"
_POWER = r"(?:\s*\^\s*(?:\{\s*-?[0-9]\s*\}|[0-9]))?"

# Not a single-letter symbol (\mathrm{e}), and not `or` and the like.
_NAMED_UNIT = rf"{_TEXT}\{{(?!\s*(?:[deiT]|(?:and|or|to)\b[^{{}}]*)\s*\}})[^{{}}]*[^\W\d_][^{{}}]*\}}{_POWER}"
_NAMED_UNITS = re.compile(
    rf"(?<=[^\s=+\-*/^_({{\[,<>]){_SPACE}*{_NAMED_UNIT}(?:{_SPACE}*(?:/|\\cdot)?{_SPACE}*{_NAMED_UNIT})*\s*\Z"
)
# One-letter units, only after an amount without letters: `5t` and `\pi r^2 h` keep their letters.
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
# Below, \0 stands for a number and \1 for any other value. Commands with arguments come last, once those are simple.
_REDUCTIONS = (
    (re.compile(rf"{_TWO}\{{\s*\0\s*\}}\s*\{{\s*\0\s*\}}|\\(?:max|min|gcd|lcm)\s*\(\s*\0(?:\s*,\s*\0)*\s*\)"), "\0"),
    (re.compile(r"(?<![}\]A-Za-z])(?:\{|(?<!')[(\[])\s*\0\s*[)}\]]|\\\{\s*\0\s*\\\}"), "\0"),
    (re.compile(rf"(?:{_TWO}\{{[^{{}}]*\}}|\\[A-Za-z]+\s*(?:\[[^\][]*\]\s*)?)\{{[^{{}}]*\}}"), "\1"),
)
_SIDE_BY_SIDE = re.compile(r"\0\s*\0")


class Expression(NamedTuple):
    """One expression found in a text."""

    latex: str
    """Empty for a number too long to write out, and for an expression that is not read."""

    number: Decimal | None = None
    """Its value, if it is a plain number."""

    percent: bool = False
    """Whether that number is a percentage."""


_UNREAD = Expression("")


Reads = Callable[[str], bool]


def find_expressions(text: str, max_chars: int, reads: Reads, only: bool = False) -> list[Expression]:
    """The expressions of the answer: none, one, or several if the text names several.

    Boxes are searched for everywhere, anything else in the last `max_chars` characters. `reads` says whether LaTeX can
    be parsed. With `only`, prose must contain exactly one number or fraction.
    """
    boxes = find_boxes(text)
    if not boxes:
        tail = text[-max_chars:]
        return _delimited(tail) or _read(tail, reads, only)
    ends = [box.start for box in boxes[1:]] + [len(text)]
    innermost = [box for box, end in zip(boxes, ends, strict=True) if box.stop <= end]
    if any(MULTIPLE_AFTER.match(text, box.stop) for box in innermost):
        return []
    contents = list(dict.fromkeys(text[box] for box in innermost))[: _MAX_ANSWERS + 1]
    read = [_read_box(content, reads, only) for content in contents]
    return _once(expression for found in read for expression in found) if all(read) else []


def is_expression(text: str) -> bool:
    """Whether a text looks like mathematics that can be parsed in reasonable time: no words, no towers of powers."""
    if len(text) > _MAX_LENGTH or not re.search(r"[^\W_]", text):
        return False
    bare = _without_commands(text)
    if _NOT_MATHS.search(bare) or any(map(_is_word, _LETTERS.finditer(bare))):
        return False
    if _HALF.match(text) or _HEAVY.search(text) or _NAMED_MULTIPLE.search(text) or has_numbers_side_by_side(text):
        return False
    depth = deepest = braces = 0
    for bracket in _BRACKET.finditer(text):
        step = 1 if bracket.lastgroup == "open" else -1
        depth += step
        deepest = max(deepest, depth)
        braces += step if bracket.group() in "{}" else 0
        if braces < 0:
            return False
    return deepest <= _MAX_DEPTH and braces == 0


def _delimited(text: str) -> list[Expression]:
    """The last expression between delimiters, with those linked to it."""
    found: list[Expression] = []
    end = 0
    for match in _DELIMITED.finditer(text):
        inside = match[match.lastgroup] if match.lastgroup else ""
        if is_expression(inside):
            linked = found and _LINK.fullmatch(text, end, match.start())
            other = _PROSE_OR.search(text, max(match.start() - 20, 0), match.start())
            end = match.end()
            read = _UNREAD if MULTIPLE_AFTER.match(text, end) else _normal(inside)
            found = [*(found if linked else [_UNREAD] if other else []), read]
    return _once(found)


def _without_commands(text: str) -> str:
    return _COMMAND.sub(r"\\", _NAMES.sub(r"\\", text))


def _is_word(letters: re.Match[str]) -> bool:
    """Whether letters are a word, name or unit, not a product of variables as in `xy`, `2ab` and `abc`."""
    run = letters["run"]
    if not (run.isascii() and (run.islower() or run.isupper())):
        return True
    if len(run) > 2:
        return "".join(sorted(run.lower())) not in _IN_ORDER
    return (
        _SHORT_WORDS.fullmatch(run.lower()) is not None or letters["apart"] is not None or letters["before"] is not None
    )


def _read_box(content: str, reads: Reads, only: bool) -> list[Expression]:
    """Read the content of a box: `_delimited`, else `_read`, but pick no numbers out of LaTeX that cannot be parsed."""
    is_prose = not _COMMAND.search(_NAMES.sub("", content)) and not _UNFINISHED.search(content.strip(_DECORATION))
    return _delimited(content) or (_read(content, reads, only) if is_prose or is_expression(content) else [])


def _read(text: str, reads: Reads, only: bool) -> list[Expression]:
    """The text if it is an expression; else the last number or fraction in it, with those linked to it."""
    text = text.strip(_DECORATION).removesuffix(".").strip(_DECORATION)
    has_commands = _COMMAND.search(text) is not None
    if is_expression(text) and (has_commands or "\n" not in text):
        whole = _normal(text)
        if whole.number is not None or has_commands or reads(whole.latex):
            return [whole]
    written = list(numerals(text))
    found: list[Expression | None] = []
    end = 0
    for numeral in written if len(written) == 1 or not only else ():
        linked = found and _LINK.fullmatch(text, end, numeral.start)
        found = [*(found if linked else []), _plain(numeral)]
        end = numeral.end
    plain = [expression for expression in found if expression]
    return _once(plain) if len(plain) == len(found) else []


def _once(expressions: Iterable[Expression]) -> list[Expression]:
    """The expressions with each value once; none if there are too many to be an answer."""
    by_value = {
        expression.latex if expression.number is None else expression[1:]: expression for expression in expressions
    }
    return list(by_value.values()) if len(by_value) <= _MAX_ANSWERS else []


def _normal(latex: str) -> Expression:
    latex = latex.strip()
    number = parse_number(without_unit(latex))
    return Expression(latex) if number is None else _number(number, "%" in latex)


def _plain(numeral: Numeral) -> Expression | None:
    """The expression for a number or fraction in prose; None if the numeral is neither."""
    number = numeral.number
    if number:
        return _number(number.value, bool(re.match(r"\s?\\?%", numeral.text[numeral.end : numeral.end + 3])))
    is_mixed = re.search(r"[0-9]\s\Z", numeral.text[: numeral.start])
    if numeral.is_part or is_mixed or not _FRACTION.fullmatch(numeral.digits):
        return None
    return Expression(f"{'' if numeral.sign in ('', '+') else '-'}{numeral.digits}")


def _number(value: Decimal, percent: bool) -> Expression:
    written = f"{value:f}" if abs(value.adjusted()) <= _MAX_DIGITS else ""
    return Expression(rf"{written}\%" if percent else written, value, percent)


def without_unit(latex: str, glued: bool = False) -> str:
    """The expression without a unit at its end: `\\text{cm}`, or one letter after a number and a space.

    `glued`: the space is optional.
    """
    named = _NAMED_UNITS.sub("", latex)
    lettered = (_GLUED_UNIT if glued else _LETTER_UNIT).fullmatch(named)
    return lettered[1] if lettered else named


def with_fractions(latex: str) -> str:
    """The expression with repeating decimals written as fractions."""
    return _REPEATING.sub(_fraction, latex)


def has_numbers_side_by_side(latex: str) -> bool:
    """Whether two numbers have only space or brackets between them; Math-Verify would add them.

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
    """The text, and what it becomes after each step: every step makes the first replacement that changes the text."""
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
