"""Plain numbers in a text, as exact decimals.

A number is written with the digits 0 to 9: `72`, `-5`, `1,234.50`, `.5`, `1e3`, also `$72`, `50%` (which is 50), and
LaTeX's `1{,}234`. Commas must part groups of three. Digits that belong to something else are no number of their own:
to a word (`x7`, `15km`), a fraction, power or root (`1/7`, `10^3`, `\\sqrt{7}`), a sum or product that goes on
(`3 + 7`, `6 x 7`), a function, a bound (`<7`), a multiple (`7 million`, `7!`), a date, a time or a version; nor are
digits of other scripts. A sign touches its number: after a minus that stands apart (`- 7`), another dash (`—7`) or
the word (`minus 7`) the number is in doubt, and no plain one. Every function reads its text once, so that a
megabyte is no trouble.
"""

import re
from collections.abc import Iterator
from decimal import Context, Decimal
from functools import lru_cache
from typing import NamedTuple

from posttrain.config.keys import shown
from posttrain.errors import DataError

_TAIL = 256  # characters
_MAX_LENGTH = 1000  # characters of a number; nobody means a longer one
_MAX_MAGNITUDE = 9999  # of the power of ten; arithmetic on what is kept cannot overflow

# Scripts without spaces between words: `共72个` holds the number 72.
_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# What changes the look of the character before it, or is not seen at all.
_MARKS = "\u00ad\u0300-\u036f\u200b-\u200f\u202a-\u202e\u2060-\u2069\u20d0-\u20ff\ufe00-\ufe0f\ufeff"
_ALNUM = rf"(?:[^\W_{_SPACELESS}]|[{_MARKS}])"
_MINUS = "\\-\u2212\u2013"  # hyphen, minus sign, en dash
_DASHES = rf"{_MINUS}\u00af\u02d7\u058a\u2010-\u2015\u2043\u207b\u2796\ufe58\ufe63\uff0d"  # all that may mean one
_CURRENCY = "$€£¥₹"
_GROUPING = r"\{,\}|,\\!|\\,"  # how LaTeX spaces thousands

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
# What may stand between a sign and its number: spaces, LaTeX's too, brackets, Markdown and a currency.
_BETWEEN = rf"(?:[\s~({{\[*_{_CURRENCY}]|\\[,;:!\ {_CURRENCY}]|\\[A-Za-z]{{1,12}})"
# What multiplies the number before it. A small k is a thousand; a large one may be kelvin.
MULTIPLES = r"(?:(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore)s?|bn|mn|tn|(?-i:k))\b"
MULTIPLE_AFTER = re.compile(rf"(?:[\s*_$}})\]~]|\\[,;:!\ ]){{0,8}}\b{MULTIPLES}|\s?[‰‱]", re.IGNORECASE)
"""Matches where what stands before is a number of millions, say, and not the number itself."""
_LOOK_BACK = 40  # characters
_LOOK_BACK_FOR_MARKS = 8
# A pattern that ends in \Z is tried at every place before it, so the many that can only be short look at few places.
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
    """Where it stands, with its sign."""

    value: Decimal


class Numeral(NamedTuple):
    """Something written in digits."""

    text: str
    """The whole text that it stands in."""

    start: int
    """Where it begins, with its sign."""

    end: int
    sign: str
    """Empty where it has none."""

    digits: str
    """All but the sign: also a whole date, or `15km`."""

    @property
    def is_part(self) -> bool:
        """Whether it is an operand: of a fraction, a product, a bound and so on, or of a minus that stands apart."""
        before = self.text[max(self.start - _LOOK_BACK, 0) : self.start]
        return bool(
            _MARK_BEFORE.search(before[-_LOOK_BACK_FOR_MARKS:])
            or _WORD_BEFORE.search(before)
            or _PART_AFTER.match(self.text, self.end)
        )

    @property
    def number(self) -> Number | None:
        """None where it is not a plain number."""
        if len(self.sign) > 1 or self.is_part:
            return None
        value = _value(self.sign, self.digits)
        return None if value is None else Number((self.start, self.end), value)


def numerals(text: str, start: int = 0, end: int | None = None) -> Iterator[Numeral]:
    """All that is written in digits: the numbers, and what looks like one but is a date, a fraction and so on.

    Words with digits in them (`x7`, `m2`), exponents and indices are passed over. `start` and `end` must not part a
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
    """The last number. None where a date, a fraction or the like comes after it: that may be what was meant."""
    last = _last_numeral(text)
    return last.number if last else None


def _last_numeral(text: str) -> Numeral | None:
    """The last of `numerals`, from the right: the answer stands at the end, and most of a text is words."""
    end = len(text)
    for digit in _digits_from_the_right(text):
        if digit >= end:
            continue
        word = _word_start(text, digit)
        # No numeral holds white space, but one may stand between a currency and its amount.
        found = list(numerals(text, _word_start(text, word), end))
        if found and found[-1].end > word:
            return found[-1]
        end = word
    return None


def _digits_from_the_right(text: str) -> Iterator[int]:
    """Where digits begin. The end of the text is looked at first, since mostly that is enough."""
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
    """The number that the text is: nothing but white space, a currency or a percent sign may stand beside it."""
    first = next(numerals(text), None)
    number = first.number if first else None
    if number is None:
        return None
    beside = text[: number.span[0]] + text[number.span[1] :]
    return None if beside.strip().strip(f"\\%{_CURRENCY}").strip() else number.value


def gold_number(gold: object) -> Decimal:
    """The number of a gold answer, which may be a number or a text that holds exactly one.

    Raises:
        DataError: there is none, or more than one.
    """
    if isinstance(gold, bool) or not isinstance(gold, int | float | str):
        raise DataError(f"the gold must be a number or a text with one, not {shown(gold)}")
    number = _only_number(spelled(gold))
    if number is None:
        raise DataError(f"the gold must hold exactly one plain number, and is {shown(gold)}")
    return number.value


@lru_cache(maxsize=4096)
def _only_number(text: str) -> Number | None:
    found = list(numerals(text))
    return found[0].number if len(found) == 1 else None


def spelled(gold: str | int | float) -> str:
    """A gold answer as a text.

    Raises:
        DataError: it is an integer of thousands of digits, which Python does not write out.
    """
    try:
        return str(gold)
    except ValueError:
        raise DataError(f"the gold must be a number that can be written out, and is {shown(gold)}") from None


def is_near(given: Decimal, gold: Decimal, relative: float = 0.0, absolute: float = 0.0) -> bool:
    """Whether two numbers differ by at most `relative` · |gold| or by at most `absolute`; without either: equal."""
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
