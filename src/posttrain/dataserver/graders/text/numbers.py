"""Find plain numbers in a text, as exact decimals.

A number is written with the digits 0 to 9: `72`, `-5`, `1,234.50`, `.5`, `1e3`, also `$72`, `50%` (which is 50), and
LaTeX's `1{,}234`. Commas must separate groups of three. Digits that are part of something else are not a number: a word
(`x7`, `15km`), a fraction, power or root (`1/7`, `10^3`, `\\sqrt{7}`), the continuation of a sum or product (the 7 of
`3 + 7` and `6 x 7`), a function, a bound (`<7`), a multiple (`7 million`, `7!`), a date, a time or a version. Digits of
other scripts do not count either. A sign must touch its number: after a detached minus (`- 7`), another dash (`—7`) or
the word (`minus 7`) the number is ambiguous and not plain. Every function reads its text once, so a megabyte is no
problem.
"""

import re
from collections.abc import Iterator
from decimal import Context, Decimal
from functools import lru_cache
from typing import NamedTuple

from posttrain.config.keys import shown
from posttrain.errors import DataError

_TAIL = 256  # characters
_MAX_LENGTH = 1000  # characters of a number; no answer needs a longer one
_MAX_MAGNITUDE = 9999  # exponent of ten; arithmetic on the accepted numbers cannot overflow

# Scripts without spaces between words: `共72个` contains the number 72.
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# Characters that modify the one before them, and invisible characters.
_MARKS = "\u00ad\u0300-\u036f\u200b-\u200f\u202a-\u202e\u2060-\u2069\u20d0-\u20ff\ufe00-\ufe0f\ufeff"
_ALNUM = rf"(?:[^\W_{_SPACELESS}]|[{_MARKS}])"
_MINUS = "\\-\u2212\u2013"  # hyphen, minus sign, en dash
_DASHES = rf"{_MINUS}\u00af\u02d7\u058a\u2010-\u2015\u2043\u207b\u2796\ufe58\ufe63\uff0d"  # all that may mean a minus
_CURRENCY = "$€£¥₹"
_GROUPING = r"\{,\}|,\\!|\\,"  # LaTeX's thousands separators

_JOIN = rf"""(?:
    [./](?=[0-9])
  | (?<=[0-9])[,:](?=[0-9])
  | (?<=[0-9])(?:{_GROUPING})(?=[0-9]{{3}})
  | [\^_](?={_ALNUM})
  | (?<![0-9])[{_MINUS}](?=[0-9])
  | (?<=[0-9][eE])[+](?=[0-9])
)"""
_DATE = r"(?:[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|[0-9]{1,2}-[0-9]{1,2}-[0-9]{4})"
_DIGIT = re.compile("[0-9]+")
_CHUNK = re.compile(
    rf"""
    (?:(?<![^\W_{_SPACELESS}])(?<![{_MARKS})\]}}%+{_MINUS}])(?P<sign>[+{_MINUS}]))?
    (?:\\?[{_CURRENCY}]\ ?(?P<inner_sign>[+{_MINUS}])?)?
    (?P<body>
        (?:{_DATE}{_ALNUM}* | (?:(?<![^\W_{_SPACELESS}])(?<![{_MARKS}.])[.](?=[0-9]))? {_ALNUM}+)
        (?:{_JOIN}{_ALNUM}+)*
    )
    """,
    re.VERBOSE,
)
_NUMBER = re.compile(r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,6})?")
_EXPONENT_OR_INDEX = ("^", "^{", "_{", "^(")
_OPERATORS = "times|cdot|div|[bp]?mod|pm|mp|pi|log|ln|exp|sin|cos|tan|int|sum|prod|in|cup|cap"
_BOUNDS = "neq?|leq?|geq?|lt|gt|ll|gg|not"
_FUNCTIONS = r"mod|modulo|log|ln|exp|sin|cos|tan|sqrt|times|plus|multiplied\ by|divided\ by"
# What may come between a sign and its number: spaces (LaTeX's too), brackets, Markdown and a currency sign.
_BETWEEN = rf"(?:[\s~({{\[*_{_CURRENCY}]|\\[,;:!\ {_CURRENCY}]|\\[A-Za-z]{{1,12}})"
# What multiplies the number before it. A lower-case k is a thousand; an upper-case one may be kelvin.
MULTIPLES = r"(?:(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore)s?|bn|mn|tn|(?-i:k))\b"
MULTIPLE_AFTER = re.compile(rf"(?:[\s*_$}})\]~]|\\[,;:!\ ]){{0,8}}\b{MULTIPLES}|\s?[‰‱]", re.IGNORECASE)
"""Matches right after a number that is multiplied, e.g. a number of millions."""
_LOOK_BACK = 40  # characters
_LOOK_BACK_FOR_MARKS = 8
# A pattern that ends in \Z is tried at every position, so the many short ones are searched for in few characters.
_WORD_BEFORE = re.compile(
    rf"""(?:
        (?:(?<![^\W_])(?:minus|negative)|[{_DASHES}](?<!---)){_BETWEEN}{{0,12}}
      | \\(?:{_OPERATORS}|{_BOUNDS})[\ ({{]?
      | (?<![^\W_])(?:{_FUNCTIONS})(?:_\{{?[^\W_]{{1,9}}\}}?)?[\ (]{{1,2}}
    )\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_MARK_BEFORE = re.compile(
    rf"""(?:
        [/√∛∜±∓]\ ?
      | [}}\]]\{{
      | [A-Za-z]\(
      | (?:frac|sqrt)\{{
      | [0-9)\]}}%]\ ?[{_MINUS}+*×·÷/]\ ?
      | [^\W_](?:\ ?[+×·÷]\ ?|[*]|\ [*]\ )
      | [0-9)\]}}](?:\ [xX]\ |\ :\ ?|[*]{{2}}|\ [*]{{2}}\ )
      | (?:[<≠≤≥≮≯]|[<>!]=|[^\W_]\ >|(?<![^\s$({{])[A-Za-z]>)\ ?
    )\Z""",
    re.VERBOSE | re.IGNORECASE,
)
_PART_AFTER = re.compile(
    rf"""
    \s?(?:\^(?!\s?\{{?\s?\\circ)|√|\\(?:[dt]?frac|sqrt|{_OPERATORS})(?![A-Za-z]))
  | !
  | [\s*_$\-]{{1,4}}(?:{MULTIPLES}|(?:squared|cubed|factorial)\b)
  | \s?[‰‱]
  | (?:\s|~|\\[,;:!\ ]){{0,4}}\\(?:text|textrm|mathrm|mbox)\s?\{{(?:\s|\\[,;:!\ ]){{0,4}}{MULTIPLES}
  | [\s*_$]{{1,4}}and[ ](?:a|one)[ -](?:half|third|quarter|fourth|fifth)\b
    """,
    re.VERBOSE | re.IGNORECASE,
)

_ROUNDED = Context(prec=50)


class Number(NamedTuple):
    """A number in a text."""

    span: tuple[int, int]
    """Its position, including the sign."""

    value: Decimal


class Numeral(NamedTuple):
    """Something written in digits."""

    text: str
    """The whole text that contains it."""

    start: int
    """Its first position, including the sign."""

    end: int
    sign: str
    """Empty if it has none."""

    digits: str
    """Everything but the sign; may be a whole date, or `15km`."""

    @property
    def is_part(self) -> bool:
        """Whether it is an operand: of a fraction, a product, a bound and so on, or of a detached minus."""
        before = self.text[max(self.start - _LOOK_BACK, 0) : self.start]
        return bool(
            _MARK_BEFORE.search(before[-_LOOK_BACK_FOR_MARKS:])
            or _WORD_BEFORE.search(before)
            or _PART_AFTER.match(self.text, self.end)
        )

    @property
    def number(self) -> Number | None:
        """The number; None if it is not a plain one."""
        if len(self.sign) > 1 or self.is_part:
            return None
        value = _value(self.sign, self.digits)
        return None if value is None else Number((self.start, self.end), value)


def numerals(text: str, start: int = 0, end: int | None = None) -> Iterator[Numeral]:
    """Everything written in digits: numbers, and what looks like one but is a date, a fraction and so on.

    Words with digits in them (`x7`, `m2`), exponents and indices are skipped. `start` and `end` must not separate a
    numeral from what belongs to it.
    """
    for chunk in _CHUNK.finditer(text, start, len(text) if end is None else end):
        digits = chunk["body"]
        if not ("0" <= digits[0] <= "9" or digits[0] == "."):
            continue
        sign = (chunk["sign"] or "") + (chunk["inner_sign"] or "")
        begin = chunk.start("sign" if chunk["sign"] else "inner_sign" if sign else "body")
        if not text[max(begin - 2, 0) : begin].endswith(_EXPONENT_OR_INDEX):
            yield Numeral(text, begin, chunk.end(), sign, digits)


def last_number(text: str) -> Number | None:
    """The last number; None if a date, a fraction or the like follows it, which may be what was meant."""
    last = _last_numeral(text)
    return last.number if last else None


def _last_numeral(text: str) -> Numeral | None:
    """The last of `numerals`, searched from the right: the answer is at the end, and most of a text is words."""
    end = len(text)
    for digit in _digits_from_the_right(text):
        if digit >= end:
            continue
        word = _word_start(text, digit)
        # A numeral contains no white space, except between a currency sign and its amount.
        found = list(numerals(text, _word_start(text, word), end))
        if found and found[-1].end > word:
            return found[-1]
        end = word
    return None


def _digits_from_the_right(text: str) -> Iterator[int]:
    """Where runs of digits begin, last first. The end of the text is searched first, which is usually enough."""
    tail = max(0, len(text) - _TAIL)
    for start, end in ((tail, len(text)), (0, tail)):
        yield from reversed([match.start() for match in _DIGIT.finditer(text, start, end)])


def _word_start(text: str, position: int) -> int:
    """Where the word that ends at or spans `position` begins."""
    while position > 0 and text[position - 1].isspace():
        position -= 1
    while position > 0 and not text[position - 1].isspace():
        position -= 1
    return position


def parse_number(text: str) -> Decimal | None:
    """The number if the text is one, with at most white space, a currency or a percent sign beside it; else None."""
    first = next(numerals(text), None)
    number = first.number if first else None
    if number is None:
        return None
    beside = text[: number.span[0]] + text[number.span[1] :]
    return None if beside.strip().strip(f"\\%{_CURRENCY}").strip() else number.value


def gold_number(gold: object) -> Decimal:
    """The number of a gold answer, which may be a number or a text with exactly one.

    Raises:
        DataError: it does not contain exactly one plain number.
    """
    if isinstance(gold, bool) or not isinstance(gold, int | float | str):
        raise DataError(f"the gold must be a number or a text with one, not {shown(gold)}")
    number = _only_number(spelled(gold))
    if number is None:
        raise DataError(f"the gold must contain exactly one plain number, but is {shown(gold)}")
    return number.value


@lru_cache(maxsize=4096)
def _only_number(text: str) -> Number | None:
    found = list(numerals(text))
    return found[0].number if len(found) == 1 else None


def spelled(gold: str | int | float) -> str:
    """A gold answer as a text.

    Raises:
        DataError: it is an integer with thousands of digits, which Python refuses to convert to text.
    """
    try:
        return str(gold)
    except ValueError:
        raise DataError(f"the gold must be a number that can be written out, but is {shown(gold)}") from None


def is_near(given: Decimal, gold: Decimal, relative: float = 0.0, absolute: float = 0.0) -> bool:
    """Whether two numbers differ by at most `relative` · |gold| or `absolute`; without either, if they are equal."""
    if given == gold:
        return True
    if not relative and not absolute:
        return False
    allowed = max(_ROUNDED.multiply(Decimal(repr(relative)), abs(gold)), Decimal(repr(absolute)))
    return abs(_ROUNDED.subtract(given, gold)) <= allowed


def _value(sign: str, body: str) -> Decimal | None:
    if len(body) > _MAX_LENGTH:
        return None
    plain = re.sub(_GROUPING, ",", body).replace("\u2212", "-").replace("\u2013", "-")
    if not _NUMBER.fullmatch(plain):
        return None
    value = Decimal(plain.replace(",", ""))
    if abs(value.adjusted()) > _MAX_MAGNITUDE:
        return None
    return value.copy_negate() if sign and sign != "+" else value
