"""The rules that extract the answer from a text, and their syntax in a config."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.config.load import load_config
from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.text.extraction import (
    AfterMarker,
    Extract,
    LastMatch,
    Pattern,
    compile_pattern,
    extract,
    extract_untrimmed,
)
from posttrain.errors import ConfigError


class Gold(StrictModel):
    extract: Extract = "all"


def load(tmp_path: Path, value: str) -> Extract:
    path = tmp_path / "config.yaml"
    path.write_text(f"extract: {value}\n")
    return load_config(path, Gold).extract


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{72}.", "72"),
        (r"\boxed{1} and \boxed{2}", "2"),
        (r"\fbox{ x + 1 }", "x + 1"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \boxed{b}}", "b"),
        (r"\boxed{1} then \boxed{2", "1"),
        (r"} \boxed{1} {", "1"),
        (r"{ \boxed{1}", "1"),
        (r"\boxed{", None),
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        (r"\boxed 7", None),
        (r"\\boxed{7}", None),
        ("boxed{7}", None),
        ("", None),
    ],
)
def test_the_box_that_opens_last(text: str, found: str | None):
    assert extract(text, "boxed") == found


@pytest.mark.parametrize(
    ("text", "found"), [("3 of 1,234.5 apples", "1,234.5"), ("it is -$5", "-$5"), ("1/2", None), ("none", None)]
)
def test_the_last_number_as_it_is_written(text: str, found: str | None):
    assert extract(text, "last_number") == found


@pytest.mark.parametrize(
    ("text", "found"),
    [("a #### 72 ", "72"), ("#### 1\n#### 2\n", "2"), ("####", None), ("72", None), ("### 72", None)],
)
def test_what_follows_the_last_marker(text: str, found: str | None):
    assert extract(text, AfterMarker(after="####")) == found


@pytest.mark.parametrize(
    ("regex", "text", "found"),
    [
        (r"\d+", "1 22 333", "333"),
        (r"<a>(.+?)</a>", "<a>1</a><a> 2 </a>", "2"),
        (r"(?s)<a>(.+?)</a>", "<a>1\n2</a>", "1\n2"),
        (r"x(\d)?", "x1 x", None),
        (r"\d+", "none", None),
        (r"a(.)b", "a\0b", "\0"),
    ],
)
def test_the_last_match_or_its_first_group(regex: str, text: str, found: str | None):
    assert extract(text, LastMatch(regex=regex)) == found


def test_all_is_the_text_without_the_white_space_around_it():
    assert extract(" a b\n", "all") == "a b"
    assert extract(" \n", "all") is None


def test_untrimmed_is_the_part_as_it_stands():
    assert extract_untrimmed(" 72 ", "all") == " 72 "
    assert extract_untrimmed("#### 72", AfterMarker(after="####")) == " 72"
    assert extract_untrimmed(r"\boxed{}", "boxed") == ""


def test_a_config_writes_a_word_or_a_section(tmp_path: Path):
    assert load(tmp_path, "boxed") == "boxed"
    assert load(tmp_path, '{after: "####"}') == AfterMarker(after="####")
    assert load(tmp_path, r"{regex: '(\d+)'}") == LastMatch(regex=r"(\d+)")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (
            "boxd",
            "extract: should be 'boxed', 'last_number' or 'all'; or should be a section with after; "
            "or should be a section with regex, found "
            "'boxd'; did you mean boxed?",
        ),
        ("{after: ''}", "extract.after: should have at least 1 character, found ''"),
        ("{after: 5}", "extract.after: should be text, found 5; put it in quotes"),
        ("{afer: x}", "extract.afer: unknown key; did you mean after?"),
        ("{after: a, regex: b}", "extract: give one of `after` and `regex`, not both"),
        ("{regex: '(?=a)'}", "extract.regex: not a pattern in RE2 syntax: invalid perl operator: (?="),
        ("{regex: '.*'}", "extract.regex: '.*' matches the empty text, so its last match is empty; write + in place"),
        ("5", "extract: should be 'boxed', 'last_number' or 'all'; or should be a section with after"),
    ],
)
def test_a_wrong_rule_is_told_in_plain_words(tmp_path: Path, value: str, reason: str):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, value)

    assert reason in str(caught.value)


RULES: list[Extract] = ["boxed", "last_number", "all", AfterMarker(after="#"), LastMatch(regex=r"(\d)x|\d")]


@given(st.text(st.sampled_from("{}\\#1x ,\ud800\0") | st.characters(), max_size=60), st.sampled_from(RULES))
def test_any_text_can_be_searched(text: str, how: Extract):
    found = extract(text, how)

    assert found is None or (found == found.strip() != "")


@pytest.mark.parametrize("piece", ["{", "}", r"\boxed{", r"\boxed{1}", r"\boxed ", "\\", "{}", "1", "1x", "#", "1,"])
def test_a_million_characters_take_seconds_at_most(piece: str):
    text = (piece * 1_000_000)[:1_000_000]
    begin = time.process_time()
    for how in RULES:
        extract(text, how)

    assert time.process_time() - begin < 10


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
        (r'"\ud800"', "lone surrogate"),
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
    # The limit is 200,000,000 characters read: 200 matches in a text of 1,000,000 characters.
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
        ("a[^#]*#|a", "a" * 1_000_000),  # each match reads to the end of the text
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
def test_any_text_can_be_searched_by_a_pattern(text: str):
    match = compile_pattern("(?s).+").search(text)

    assert (match.span() if match else (0, 0)) == (0, len(text))
