"""Copies, near copies and held-out texts are found, as by comparing every text with every other."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from posttrain.data.overlap import Duplicate, Found, HeldOut, duplicates, grams, normalised, overlaps

TEN = "a b c d e f g h i j"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("How  many\napples?\t", "how many apples?"),
        ("Ｈｏｗ ﬁve", "how five"),
        ("STRASSE", "straße"),
        ("1\u00a0000", "1 000"),
        (" ", ""),
    ],
)
def test_width_case_and_white_space_do_not_count(text: str, same: str):
    assert normalised(text) == normalised(same)


@pytest.mark.parametrize(
    ("text", "n", "expected"),
    [
        ("a b c d", 3, {"a b c", "b c d"}),
        ("a b a b a", 2, {"a b", "b a"}),
        ("A b", 3, {"a b"}),
        ("一二三 ok", 2, {"一 二", "二 三", "三 ok"}),
        (" \n", 3, set()),
    ],
)
def test_grams_are_runs_of_words(text: str, n: int, expected: set[str]):
    assert grams(text, n) == expected


def test_the_share_is_of_the_held_out_texts_grams():
    # Of the 8 runs of 3 words in TEN, "b c d e f" has the 3 b c d, c d e and d e f.
    held_out = HeldOut([("test:1", TEN), ("test:2", "x y z")], n=3)
    assert held_out.found_in("b c d e f", 0.3) == [Found("test:1", 3 / 8, exact=False)]
    assert held_out.found_in("b c d e f", 0.4) == []
    # All of a held-out text within a longer one counts in full; case and line ends do not matter.
    assert held_out.found_in(f"Question: X\nY z and {TEN}?") == [
        Found("test:1", 7 / 8, exact=False),
        Found("test:2", 1.0, exact=False),
    ]
    assert held_out.found_in(f" {TEN.upper()}\n") == [Found("test:1", 1.0, exact=True)]


def test_a_text_shorter_than_a_gram_is_found_only_as_a_copy():
    held_out = HeldOut([(1, "How many apples?")])
    assert held_out.found_in("How many apples? Three.") == []
    assert held_out.found_in("how many  apples?") == [Found(1, 1.0, exact=True)]


def test_what_most_texts_begin_with_does_not_count():
    same = "solve this step by step please"
    held_out = [(number, f"{same} number {number} is it not") for number in range(4)]
    # Grams of 3: all 4 texts share "solve this step" to "step by please" (4) and "step please number".
    assert [found.place for found, _ in overlaps(held_out, [("new", f"{same} number nine")], n=3)] == [0, 1, 2, 3]
    assert not list(overlaps(held_out, [("new", f"{same} number nine")], n=3, common=3))
    assert [found.place for found, _ in overlaps(held_out, [("new", "number 2 is it not")], n=3, common=3)] == [2]


def test_each_overlap_names_both_places():
    found = list(overlaps([("test:1", "one"), ("test:2", "two")], [("a:1", "TWO"), ("a:2", "three"), ("a:3", "one")]))
    assert [(each.place, place) for each, place in found] == [("test:2", "a:1"), ("test:1", "a:3")]


def test_copies_name_the_first_text():
    assert duplicates(["a", "b", "A ", "a"]) == {2: Duplicate(0, 1.0, True), 3: Duplicate(0, 1.0, True)}


def test_near_copies_have_most_grams_in_common():
    # TEN has 6 runs of 5 words. With another last word 5 of 7 are shared: 0.714.
    texts = [TEN, "a b c d e f g h i z", "other words that are not like these"]
    assert duplicates(texts, 0.7) == {1: Duplicate(0, 5 / 7, False)}
    assert duplicates(texts, 0.72) == {}


def test_a_text_like_one_that_is_left_out_stays_if_it_is_not_like_the_one_that_stays():
    # Each shares 5 of 7 grams with its neighbours, the first and the third 4 of 8.
    chain = [TEN, "b c d e f g h i j k", "c d e f g h i j k l"]
    assert duplicates(chain, 0.7) == {1: Duplicate(0, 5 / 7, False)}
    # A copy of what was left out repeats what that repeats.
    assert duplicates([*chain, chain[1].upper()], 0.7)[3] == Duplicate(0, 5 / 7, False)


def test_many_copies_are_found_though_their_grams_are_common():
    found = duplicates([TEN] * 300, 0.8)
    assert len(found) == 299 and {each.of for each in found.values()} == {0}


WORDS = st.lists(st.sampled_from("ab"), max_size=7).map(" ".join)


@given(st.lists(WORDS, max_size=6), st.lists(WORDS, max_size=6), st.floats(0.05, 1), st.integers(1, 4))
def test_overlaps_are_those_of_comparing_every_text_with_every_other(held: list, others: list, least: float, n: int):
    expected = []
    for place, other in enumerate(others):
        for number, text in enumerate(held):
            whole = grams(text, n)
            share = 1.0 if text == other else len(whole & grams(other, n)) / len(whole) if whole else 0.0
            if share >= least:
                expected.append((number, share, text == other, place))
    found = overlaps(enumerate(held), enumerate(others), n=n, least=least)
    assert [(each.place, each.share, each.exact, place) for each, place in found] == expected


@given(st.lists(WORDS, max_size=12), st.floats(0.05, 1), st.integers(1, 4))
@example(["b b", "a a a a a b b", "a a b", "a a a a a b b"], 0.25, 2)  # the last is more like the third than the first
def test_duplicates_are_those_of_comparing_every_text_with_every_other(texts: list[str], near: float, n: int):
    def similarity(one: str, other: str) -> float:
        if one == other:
            return 1.0
        union = grams(one, n) | grams(other, n)
        return len(grams(one, n) & grams(other, n)) / len(union) if union else 0.0

    kept: list[int] = []
    found = duplicates(texts, near, n=n)
    for number, text in enumerate(texts):
        like = {other: similarity(text, texts[other]) for other in kept if similarity(text, texts[other]) >= near}
        assert (number in found) == bool(like)
        if (first := texts.index(text)) != number and first in found:
            assert found[number] == found[first]
            continue
        if like:
            assert like[found[number].of] == found[number].similarity == max(like.values())
        else:
            kept.append(number)


@settings(max_examples=30)
@given(st.lists(WORDS, max_size=12), st.floats(0.05, 1), st.integers(1, 3))
def test_skipping_common_grams_never_finds_more(texts: list[str], near: float, common: int):
    for number, each in duplicates(texts, near, n=2, common=common).items():
        one, other = grams(texts[number], 2), grams(texts[each.of], 2)
        assert each.exact or len(one & other) / len(one | other) >= near


def test_thousands_of_texts_take_seconds():
    texts = [f"{TEN} this is row {number} of many rows and has number {number * 7} in it" for number in range(3000)]
    started = time.process_time()
    assert duplicates(texts, 0.95) == {}
    assert time.process_time() - started < 10
