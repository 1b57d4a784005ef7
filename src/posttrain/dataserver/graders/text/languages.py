"""Which language a text is in, told by a small model that comes with py3langid."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

# Of the languages that the model knows, those with enough text behind them to be told from their neighbours.
LANGUAGES = tuple(
    re.findall(
        r"\w+",
        """af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha he hi hr ht hu hy
        id ig is it ja jv ka kk km kn ko ku ky la lg ln lo lt lv mg mk ml mn mr ms my ne nl no om or pa pl ps pt qu ro
        ru sa si sk sl so sq sr sv sw ta te th tl tr ug uk ur uz vi xh yo zh zu""",
    )
)
"""ISO 639-1 codes."""

# Code, formulas and addresses are in no language. Each alternative starts with what no other one starts with.
_NO_PROSE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$[^$]*\$\$|\$[^$\n]*\$|https?://\S+", re.DOTALL)
_LONGEST = 20_000


class Guess(NamedTuple):
    """The language that a text is most likely in."""

    language: str
    confidence: float
    """In [0, 1]; low for short texts, whatever they say."""


def guess_language(prose: str, among: Iterable[str] = LANGUAGES) -> Guess:
    """The likeliest of these languages, by the first 20 000 characters."""
    return Guess(*_identifier(tuple(among)).classify(prose[:_LONGEST]))


def prose_of(text: str) -> str:
    """The text without code, formulas and web addresses."""
    return _NO_PROSE.sub(" ", text)


def load_languages() -> None:
    """Load the model, which takes half a second."""
    _identifier(LANGUAGES)


@lru_cache(maxsize=16)
def _identifier(languages: tuple[str, ...]) -> "LanguageIdentifier":
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(languages)
    return identifier
