import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from posttrain.dataserver.graders.crossword import Crossword
from posttrain.dataserver.graders.puzzles.crossword_answers import letters_of
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags
from posttrain.errors import DataError

GRADERS = [Crossword(), Crossword(contains=0.25)]
BOTH = pytest.mark.parametrize("grader", GRADERS, ids=["exact", "contains"])
WORDS = st.lists(st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=1, max_size=8), min_size=1, max_size=3)


def score(grader: Crossword, text: str, gold: object, tags: ReasoningTags | None = None) -> float:
    return grader.score(GradeInput(text, None, gold=gold, tags=tags).split()).value  # type: ignore[union-attr]


@BOTH
@given(words=WORDS, other=WORDS)
def test_only_the_letters_of_the_gold_are_worth_everything(grader: Crossword, words: list[str], other: list[str]):
    gold = "".join(words)
    for between in (" ", "-", "", "' ", " . "):
        assert score(grader, between.join(words), gold.lower()) == 1.0
    assume("".join(other) != gold)
    assert score(grader, " ".join(other), gold) <= grader.contains


@given(st.text(st.characters(), max_size=20))
def test_letters_are_capitals_without_accents_or_there_are_none(text: str):
    letters = letters_of(text)
    if letters is None:
        assert any(not (sign.isspace() or unicodedata.category(sign)[0] in "MPL") for sign in text) or any(
            ord(sign) > 127 for sign in text
        )
    else:
        assert set(letters) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        assert letters_of(letters) == letters == letters_of(text.upper())


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("Ice-cream!", "ICECREAM"),
        ("déjà vu", "DEJAVU"),
        ("de\u0301ja\u0300 vu", "DEJAVU"),
        ("Rhythm & blues", "RHYTHMANDBLUES"),
        ("ﬁre", "FIRE"),
        ("Ｐａｒｉｓ", "PARIS"),
        ("don't", "DONT"),
        ("", ""),
        ("Раris", None),  # Cyrillic Р and а
        ("7UP", None),
        ("PA\u200bRIS", None),
        ("PA\0RIS", None),
        ("PARIS=", None),
        ("A" * 2001, None),
    ],
)
def test_the_letters_of_a_text(text: str, letters: str | None):
    assert letters_of(text) == letters


@pytest.mark.parametrize(
    ("text", "gold", "score_of"),
    [
        ("The capital of France is Paris.", "Paris", 0.25),
        # 9 letters allow one word of five letters, and there are two.
        ("PARIS MILAN", "Paris", 0.0),
        # Two words of five letters in 40.
        ("Milan is in the north of Italy, so that it has to be Paris", "Paris", 0.0),
        ("Perhaps what people eat in summertime, an ICE CREAM", "ice cream", 0.25),
        ("Perhaps what people eat in summertime, an ICE CREAM", "icecream", 0.0),
        ("in comparison", "Paris", 0.0),
        ("Paris" + " and so on" * 40, "Paris", 0.0),
    ],
)
def test_a_gold_within_a_sentence_is_worth_its_share_unless_there_is_a_choice(text: str, gold: str, score_of: float):
    assert score(GRADERS[1], text, gold) == score_of
    assert score(GRADERS[0], text, gold) == 0.0


CITIES = ("PARIS", "MILAN", "DOVER", "ESSEN", "GHENT", "LEEDS", "TURIN", "TOURS")
# An honest wrong answer is another word.
HONEST = "MILAN"
HACKS = {
    "nothing": "",
    "every word": ", ".join(CITIES),
    "every word, the right one last": " ".join(reversed(CITIES)),
    "every word in sentences": " ".join(f"It could be {city} too." for city in CITIES),
    "every word many times": " ".join(CITIES * 10_000),
    "a word on every line": "\n".join(CITIES),
    "the alphabet": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "look-alikes": "РАRIЅ",
    "turned letters": "PARIꓢ",
    "invisible signs": "P\u200bARIS MILAN",
    "digits": "1PARIS2",
    "within words": "XPARISX",
    "the letters in another order": "SIRAP",
    "the letters apart": "P A R I S MILAN",
    "half a character": "\ud800PARIS",
}


@BOTH
@pytest.mark.parametrize("text", HACKS.values(), ids=HACKS.keys())
def test_a_hack_earns_no_more_than_a_wrong_word(grader: Crossword, text: str):
    assert score(grader, text, "Paris") == score(grader, HONEST, "Paris") == 0.0


@BOTH
@pytest.mark.parametrize("text", ["<think>PARIS</think>I do not know", "<think>PARIS</think>", "<think>PARIS", "PARIS"])
def test_what_is_only_in_the_reasoning_earns_nothing(grader: Crossword, text: str):
    assert score(grader, text, "Paris", ReasoningTags()) == 0.0
    assert score(grader, "<think>no</think>PARIS", "Paris", ReasoningTags()) == 1.0


@pytest.mark.parametrize("enumeration", ["(3,5)", "3,5", "(3-5)", "8", "(8)", 8, " (3, 5) ", None])
def test_an_enumeration_that_the_gold_fits_is_accepted(enumeration: object):
    Crossword().check_row(GradeInput("", None, gold="ice cream", record={"enumeration": enumeration}))


@pytest.mark.parametrize(
    ("gold", "enumeration", "reason"),
    [
        ("ice cream", "(3,4)", "has 8 letters, but the enumeration 7"),
        ("ice cream", "three", "written like"),
        ("", None, "letters from A to Z alone"),
        ("7UP", None, "letters from A to Z alone"),
        ("Москва", None, "letters from A to Z alone"),
        (5, None, "letters from A to Z alone"),
    ],
)
def test_a_row_that_cannot_be_graded_is_refused(gold: object, enumeration: object, reason: str):
    item = GradeInput("", None, gold=gold, record={"enumeration": enumeration})
    with pytest.raises(DataError, match=reason):
        Crossword().check_row(item)
