"""The rules that take the answer out of a text, and how a config writes them."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.config.load import load_config
from posttrain.config.strict import StrictModel
from posttrain.dataserver.graders.text.extraction import AfterMarker, Extract, LastMatch, extract, extract_untrimmed
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
