"""The language of an answer, named by code or column: judged only with enough text, without code and formulas."""

from typing import Any

import pytest

from posttrain.dataserver.graders.base import Abstain, Score
from posttrain.dataserver.graders.language import Language, prose_of
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError

SENTENCES = {
    "ar": "القاهرة هي عاصمة جمهورية مصر العربية وأكبر مدنها من حيث عدد السكان.",
    "de": "Der Zug fährt um halb acht ab, deshalb müssen wir uns jetzt wirklich beeilen.",
    "en": "The train leaves at half past seven, so we really have to hurry up now.",
    "es": "El tren sale a las siete y media, así que ahora tenemos que darnos prisa.",
    "fr": "Le train part à sept heures et demie, nous devons donc nous dépêcher.",
    "hi": "रेलगाड़ी साढ़े सात बजे निकलती है इसलिए हमें अब जल्दी करनी होगी।",
    "ja": "電車は七時半に出発しますので、今すぐ急がなければなりません。",
    "ko": "기차는 일곱 시 반에 출발하므로 우리는 지금 서둘러야 합니다.",
    "pl": "Pociąg odjeżdża o wpół do ósmej, więc musimy się teraz naprawdę pospieszyć.",
    "ru": "Поезд отправляется в половине восьмого, поэтому нам надо поторопиться.",
    "sv": "Tåget går klockan halv åtta, så nu måste vi verkligen skynda oss.",
    "zh": "火车七点半出发，所以我们现在真的要赶快，否则就来不及坐上这趟火车了。",
}


def grade(text: str, record: dict[str, Any] | None = None, **params: Any) -> float:
    given = Language(**params).score(GradeInput(text, text, record=record or {}))
    return given.value if isinstance(given, Score) else given


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_is_in_its_own_language_and_in_no_other(language: str) -> None:
    scores = {wanted: grade(SENTENCES[language], language=wanted) for wanted in SENTENCES}

    assert scores == {wanted: float(wanted == language) for wanted in SENTENCES}


def test_code_formulas_and_addresses_do_not_count() -> None:
    text = "Ja: `x = y` $a + b$ $$\nc\n$$ https://example.org/the/quick/brown/fox ```python\nreturn the_value\n``` nein"

    assert prose_of(text).split() == ["Ja:", "nein"]
    assert grade(f"{SENTENCES['de']}\n```\n{SENTENCES['en'] * 5}\n```", language="de") == 1.0


@pytest.mark.parametrize(
    "text", ["42", "Oui", "x = 3.14159265358979", "123456789012345678901", "$the long formula of it$"]
)
def test_too_few_letters_are_not_judged(text: str) -> None:
    with pytest.raises(Abstain, match="letters are too few"):
        grade(text, language="en")


def test_a_text_that_could_be_anything_is_not_judged() -> None:
    with pytest.raises(Abstain, match="confidence"):
        grade("Anna Lund Berlin Roma Oslo Madrid", language="en")


def test_fewer_languages_make_short_texts_clear() -> None:
    assert grade("the cat sat on the mat", language="en", among=["en", "zh"], min_letters=5) == 1.0


def test_an_empty_answer_is_in_no_language() -> None:
    assert grade(" \n", language="en") == 0.0


def test_the_row_can_name_the_language() -> None:
    assert grade(SENTENCES["sv"], {"lang": "sv"}, column="lang") == 1.0
    assert grade(SENTENCES["sv"], {"lang": "en"}, column="lang") == 0.0


@pytest.mark.parametrize("named", [None, "", "xx", "English", 5])
def test_a_row_without_a_known_language_is_refused(named: Any) -> None:
    with pytest.raises(DataError, match="'lang' must contain a language"):
        Language(column="lang").check_row(GradeInput("", None, record={"lang": named}))


def test_a_row_whose_language_is_left_out_is_refused() -> None:
    with pytest.raises(DataError, match="not one of en, de"):
        Language(column="lang", among=("en", "de")).check_row(GradeInput("", None, record={"lang": "fr"}))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "give either language"),
        ({"language": "en", "column": "lang"}, "give either language"),
        ({"language": "english"}, "did you mean en"),
        ({"language": "EN"}, "did you mean en"),
        ({"language": "fr", "among": ["en", "de"]}, "among does not contain"),
        ({"language": "en", "among": ["en"]}, "single language"),
        ({"language": "en", "among": ["en", "q!"]}, "not a known language code"),
    ],
)
def test_a_config_that_cannot_work_is_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Language(**params)
