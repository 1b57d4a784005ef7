"""Remove invisible characters, which could fill a text or hide a word."""

import re
import unicodedata

# Control and format characters, fillers, blanks and variation selectors; not white space.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U00013440\U00016fe4\U0001bca0-\U0001bca3"
    "\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)

_ASCII_INVISIBLE = {code: None for code in range(128) if _INVISIBLE.match(chr(code))}

# Normalising takes quadratic time on heaps of accents, so a long one is taken in pieces.
_PIECE = re.compile(r"[^ \n]{1,200}")


def without_invisible(text: str) -> str:
    """The text without characters that leave no mark."""
    return text.translate(_ASCII_INVISIBLE) if text.isascii() else _INVISIBLE.sub("", text)  # the former is faster


def visible(text: str) -> str:
    """The same without white space at both ends: empty where there is nothing to see."""
    return without_invisible(text).strip()


def plain(text: str) -> str:
    """The text in one spelling (NFKC), without characters that leave no mark."""
    text = without_invisible(text)
    return text if text.isascii() else _PIECE.sub(lambda piece: unicodedata.normalize("NFKC", piece[0]), text)
