"""What an answer may hold before a scorer of reasoning-gym sees it.

Some of the library's scorers hand the answer to Python's `eval`, or to SymPy's parser, which does. There a model
could run any code. What is let through here has no way to call or to look up anything but the functions named.
"""

import re
from collections.abc import Mapping

_LONGEST = 2000

# No brackets that call, no dots, no braces, no operators: names, numbers and texts in lists are all that is left.
_LISTS = re.compile(r"[\w\s\[\],'\"-]*")
_ARITHMETIC = re.compile(r"[\d\s+\-*/().]*")
_TERM = re.compile(r"[\w\s+\-*/().,]*")

_NAMES = {"acos", "asin", "atan", "cos", "cosh", "exp", "log", "pi", "sin", "sinh", "sqrt", "tan", "tanh", "Abs"}
_NAME = re.compile(r"[^\W\d]\w*")

# Comparisons with NaN are all false, which some scorers take for "near enough"; 1e999999999 as a fraction never ends.
_NOT_FINITE = re.compile(r"(?<![^\W\d_])(?:nan|inf(?:inity)?)j?(?![^\W\d_])|[0-9]e[+-]?[0-9]{4,}", re.IGNORECASE)

# A power of a power, or a long exponent, can take hours to compute.
_HUGE_POWER = re.compile(r"\*\*[^*+-]*\*\*|\*\*[\s(+-]*\d{4}")

_FORMS: Mapping[str, re.Pattern[str]] = {
    "binary_matrix": _LISTS,
    "countdown": _ARITHMETIC,
    "intermediate_integration": _TERM,
    "n_queens": _LISTS,
    "simple_integration": _TERM,
    "spiral_matrix": _LISTS,
    "string_insertion": _LISTS,
}


def is_harmless(answer: str, dataset: str, right: object = None) -> bool:
    """Whether the scorer of that data set can be shown the answer. What is refused is no right answer.

    `right`: the item's own answer, if it has one. Where that is a word such as `inf`, another answer may be too.
    """
    if _NOT_FINITE.search(answer) and not (isinstance(right, str) and _NOT_FINITE.search(right)):
        return False
    form = _FORMS.get(dataset)
    if form is None:
        return True
    if len(answer) > _LONGEST or not form.fullmatch(answer) or _HUGE_POWER.search(answer):
        return False
    return form is not _TERM or all(len(name) == 1 or name in _NAMES for name in _NAME.findall(answer))
