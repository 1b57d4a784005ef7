"""Invisible characters neither count as text nor hide a word."""

import time

import pytest

from posttrain.dataserver.graders.text.completions import plain, visible, without_invisible

NOTHING = [
    *("\u200b", "\u2060", "\ufeff", "\u00ad", "\u034f", "\u061c", "\u115f", "\u17b4", "\u180b", "\u180e", "\u2800"),
    *("\u3164", "\ufe0f", "\uffa0", "\ufff9", "\U0001bca0", "\U0001d159", "\U0001d173", "\U00013430", "\U00016fe4"),
    *("\U000e0041", "\U000e0100", "\x00", "\x7f", "\x9f", "\u2065", "\u202e"),
]
SEEN = ["a", "é", "e\u0301", "共", "का", "\u0600", "☺", "€", ".", "\U00013000", "\u00b7", "\ufffd"]


@pytest.mark.parametrize("nothing", NOTHING)
def test_what_leaves_no_mark_is_left_out(nothing: str):
    assert visible(f" {nothing}\n{nothing}{nothing}") == ""
    assert without_invisible(f" a{nothing}b ") == " ab "


@pytest.mark.parametrize("text", SEEN)
def test_what_can_be_seen_stays(text: str):
    assert visible(f"\t{text} {text}\n") == f"{text} {text}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("ｓｏｒｒｙ", "sorry"),
        ("so\u200brry", "sorry"),
        ("New\u00a0York", "New York"),
        ("ﬁne", "fine"),
        ("sоrry", "sоrry"),  # Cyrillic о is a different letter
        ("plain text\n", "plain text\n"),
    ],
)
def test_a_plain_text_has_one_spelling_of_each_character(text: str, wanted: str):
    assert plain(text) == wanted


def test_a_million_accents_take_no_time():
    begin = time.process_time()
    plain("\u0301\u0316" * 500_000)

    assert time.process_time() - begin < 10
