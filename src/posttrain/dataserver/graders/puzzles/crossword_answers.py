"""The letters of a crossword answer, and the lengths of its words as a clue gives them."""

import re
import unicodedata
from collections.abc import Sequence

from posttrain.errors import DataError

# A longer text is no answer to a clue; and decomposing takes quadratic time on long runs of accents.
_LONGEST = 2000
_ENUMERATION = re.compile(r"\d+(?:[,\-' ]+\d+)*")


def letters_of(text: str) -> str | None:
    """The letters as capitals A to Z, without accents, white space and punctuation, and with & as AND.

    None if the text is very long, or contains a character of any other kind.
    """
    if len(text) > _LONGEST:
        return None
    decomposed = unicodedata.normalize("NFKD", text.replace("&", " AND ")).upper()
    kept = [sign for sign in decomposed if not (sign.isspace() or unicodedata.category(sign)[0] in "MP")]
    letters = "".join(kept)
    return letters if all("A" <= sign <= "Z" for sign in letters) else None


def word_lengths(enumeration: str) -> Sequence[int]:
    """The lengths in an enumeration such as `(3,4)`, `3-4` or `7`; DataError if it is written in another way."""
    inner = enumeration.strip().removeprefix("(").removesuffix(")").strip()
    if _ENUMERATION.fullmatch(inner) is None:
        raise DataError(f"the enumeration must be written like (3,4), not {enumeration[:60]!r}")
    return [int(length) for length in re.findall(r"\d+", inner)]


def require_fit(letters: str, enumeration: str) -> None:
    """Raise DataError unless the enumeration is for as many letters."""
    total = sum(word_lengths(enumeration))
    if total != len(letters):
        raise DataError(f"the answer has {len(letters)} letters, but the enumeration {total}")
