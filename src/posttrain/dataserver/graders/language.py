"""Grader `language`: check that the answer is written in the wanted language."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from posttrain.dataserver.graders.base import Abstain, Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

_FRENCH = {"language": "fr"}
_PARIS = "Paris est la capitale de la France et sa plus grande ville."

# The model's languages that have enough training text to be distinguished from similar ones.
LANGUAGES = tuple(
    re.findall(
        r"\w+",
        """af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha he hi hr ht hu hy
        id ig is it ja jv ka kk km kn ko ku ky la lg ln lo lt lv mg mk ml mn mr ms my ne nl no om or pa pl ps pt qu ro
        ru sa si sk sl so sq sr sv sw ta te th tl tr ug uk ur uz vi xh yo zh zu""",
    )
)
"""ISO 639-1 codes."""

# Code, formulas and web addresses are in no language. The longer of two similar delimiters is tried first.
_NO_PROSE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$[^$]*\$\$|\$[^$\n]*\$|https?://\S+", re.DOTALL)
_LONGEST = 20_000


class Language(TextGrader):
    """1 if the answer is mostly in the wanted language; else 0.

    Code, formulas and web addresses do not count. It abstains if what is left is too short or too mixed to tell.
    """

    type: Literal["language"] = "language"

    language: str | None = None
    """The wanted language, as a two-letter code such as en; give this or `column`."""

    column: str | None = Field(default=None, min_length=1)
    """The column with the code of the wanted language."""

    among: tuple[str, ...] = ()
    """Languages that the answer may be in, which helps with short answers; if omitted, all known ones."""

    min_letters: int = Field(default=20, ge=1)
    """With fewer letters it abstains."""

    min_confidence: float = Field(default=0.5, ge=0, le=1)
    """With less confidence in every language it abstains."""

    libraries: ClassVar[tuple[str, ...]] = ("py3langid",)
    examples: ClassVar[tuple[Example, ...]] = (
        Example(_PARIS, 1.0, params=_FRENCH),
        Example(_PARIS, 0.0, params={"language": "de"}),
        Example(_PARIS, 1.0, params={"column": "lang"}, record={"lang": "fr"}, note="the row's language"),
        Example("Oui.", None, params=_FRENCH, note="too short to tell"),
        Example("```\nreturn the answer to everything\n```", None, params=_FRENCH, note="code is not in any language"),
        Example("東京は日本の首都であり、世界最大の都市の一つです。", 1.0, params={"language": "ja"}),
        Example("", 0.0, params=_FRENCH),
    )

    @field_validator("language")
    @classmethod
    def _is_known(cls, language: str | None) -> str | None:
        return language if language is None else _known(language)

    @field_validator("among")
    @classmethod
    def _are_several(cls, among: tuple[str, ...]) -> tuple[str, ...]:
        if len(among) == 1:
            raise ValueError("among has a single language, so every answer would count as that; list the others too")
        return tuple(_known(language) for language in among)

    @model_validator(mode="after")
    def _one_source(self) -> "Language":
        if (self.language is None) == (self.column is None):
            raise ValueError("give either language (a code such as en) or column (where the rows have one)")
        if self.language and self.among and self.language not in self.among:
            raise ValueError(f"among does not contain {self.language}, the expected language; add it")
        return self

    def load(self) -> None:
        """Load the model."""
        load_languages()

    def check_row(self, item: GradeInput) -> None:
        """With `column`, raise DataError unless the row names a known language, one of `among` if that is set."""
        self._wanted(item)

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """1 or 0."""
        if not text.strip():
            return Score(0.0, "empty")
        prose, wanted = prose_of(text), self._wanted(item)
        letters = sum(map(str.isalpha, prose))
        if letters < self.min_letters:
            raise Abstain(f"{letters} letters are too few to detect the language")
        guess = guess_language(prose, self.among or LANGUAGES)
        if guess.confidence < self.min_confidence:
            raise Abstain(f"perhaps {guess.language}, but with a confidence of only {guess.confidence:.2f}")
        return Score(float(guess.language == wanted), guess.language)

    def _wanted(self, item: GradeInput) -> str:
        if self.column is None:
            return self.language or ""
        named = item.record.get(self.column)
        try:
            wanted = _known(named if isinstance(named, str) else "")
        except ValueError as error:
            raise DataError(f"the column {self.column!r} must contain a language: {error}") from None
        if self.among and wanted not in self.among:
            raise DataError(
                f"the language {wanted} of the column {self.column!r} is not one of {', '.join(self.among)}"
            )
        return wanted


def _known(language: str) -> str:
    if language in LANGUAGES:
        return language
    near = get_close_matches(language.lower()[:2], LANGUAGES, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ValueError(f"{language[:40]!r} is not a known language code{hint}")


class Guess(NamedTuple):
    """The language that a text is most likely in."""

    language: str
    confidence: float
    """In [0, 1]; low for short texts, whatever they say."""


def guess_language(prose: str, among: Iterable[str] = LANGUAGES) -> Guess:
    """The most likely of these languages, judged by the first 20 000 characters."""
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
