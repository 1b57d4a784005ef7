"""Patterns are RE2: checked when a config loads, and linear on any text."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.config.load import load_config
from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.text.patterns import Pattern, compile_pattern
from posttrain.errors import ConfigError


class Sample(StrictModel):
    pattern: Pattern


def refusal(tmp_path: Path, pattern: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(f"pattern: {pattern}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, Sample)
    return str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)b", "invalid perl operator: (?="),
        (r"'(a)\1'", r"invalid escape sequence: \1"),
        ("'a{1001}'", "invalid repetition size: {1001}"),
        ("'(a'", "missing ): (a"),
        ("'[a'", "missing ]: [a"),
        ("'(a{1000}){1000}'", "invalid repetition size"),
        (r'"\ud800"', "half a character"),
    ],
)
def test_a_pattern_that_re2_does_not_know_is_refused_at_its_line(tmp_path: Path, pattern: str, reason: str):
    message = refusal(tmp_path, pattern)

    assert "config.yaml:1: " in message
    assert reason in message


def test_the_refusal_names_the_limits_of_re2(tmp_path: Path):
    assert "no look-around" in refusal(tmp_path, "a(?!b)")


def test_a_good_pattern_stays_a_text(tmp_path: Path):
    path = tmp_path / "config.yaml"
    path.write_text(r"pattern: '(\d+)'")

    assert load_config(path, Sample).pattern == r"(\d+)"


def test_a_pattern_that_is_no_text_is_refused(tmp_path: Path):
    assert "pattern: should be text, found 5; put it in quotes" in refusal(tmp_path, "5")


def test_matches_give_groups_names_and_spans():
    pattern = compile_pattern(r"(?P<name>[a-z]+)=(\d)?")
    match = pattern.search("né ab=x")

    assert match is not None
    assert (pattern.groups, dict(pattern.group_names)) == (2, {"name": 1})
    assert (match.group(), match.group("name"), match.group(2)) == ("ab=", "ab", None)
    assert match.span(1) == (3, 5)
    assert match.groupdict() == {"name": "ab"}


def test_a_fullmatch_takes_all_of_the_text():
    assert compile_pattern("a+").fullmatch("aaa")
    assert not compile_pattern("a+").fullmatch("aaab")
    assert not compile_pattern("a+").fullmatch("aaa\n")


def test_the_last_match_is_the_last_that_does_not_overlap():
    last = compile_pattern(r"\d+").last("1 22 333.")

    assert last is not None
    assert last.span() == (5, 8)
    assert compile_pattern(r"\d").last("none") is None


def test_too_many_matches_have_no_last():
    # 200,000,000 characters of reading: 200 matches in a text of 1,000,000 characters.
    assert compile_pattern("b").last("b" * 200 + "a" * 999_800) is not None
    assert compile_pattern("b").last("b" * 201 + "a" * 999_799) is None


def test_nul_and_lone_surrogates_are_characters_like_others():
    match = compile_pattern("a(.)b").search("\x00xa\ud800b")

    assert match is not None
    assert match.span(1) == (3, 4)
    assert compile_pattern("\x00").search("a\x00b")


def test_a_pattern_is_compiled_once():
    assert compile_pattern("a+b") is compile_pattern("a+b")


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a+a+)+b", "a" * 1_000_000),
        ("(a|aa)*$b", "a" * 1_000_000),
        ("a[^#]*#|a", "a" * 1_000_000),  # each match reads on to the end of the text
        ("(.*)(.*)(.*)=", "x" * 1_000_000),
    ],
)
def test_a_million_characters_are_no_trouble(pattern: str, text: str):
    compiled = compile_pattern(pattern)
    start = time.perf_counter()
    compiled.search(text)
    compiled.last(text)
    compiled.fullmatch(text)

    assert time.perf_counter() - start < 5


@given(st.text(alphabet=st.characters()))
def test_any_text_can_be_searched(text: str):
    match = compile_pattern("(?s).+").search(text)

    assert (match.span() if match else (0, 0)) == (0, len(text))
