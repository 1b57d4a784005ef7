"""Tables of results, and the most common reasons for missing scores, each with its first occurrence."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from posttrain.dataserver.offline import display
from posttrain.dataserver.offline.display import Mean, Reasons, show_table, weight_text
from posttrain.dataserver.schemas import Component, GradeResult


def lines_of(columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> list[str]:
    console = Console(width=80, no_color=True)
    with patch.object(display, "console", console), console.capture() as captured:
        show_table(columns, rows)
    return captured.get().splitlines()


NUMBERS = ("completions", "ok", "abstain", "error", "mean reward")


@given(st.text("fhj-", min_size=1, max_size=100), st.text("xyz ", min_size=1, max_size=60).filter(str.strip))
def test_names_are_folded_and_never_cut_off_in_80_columns(dataset: str, stage: str):
    row = (dataset, stage.strip(), 1_234_567, 1_234_567, 0, 12, "0.1234")
    lines = lines_of(("data set", "stage", *NUMBERS), [row])
    assert max(map(len, lines)) <= 80
    body = "".join(lines)  # letters that no head has
    for name, letters in ((dataset, "fhj-"), (stage, "xyz")):
        assert [letter for letter in body if letter in letters] == [letter for letter in name if letter in letters]
    assert "1,234,567" in body and "0.1234" in body


def test_the_rows_of_a_data_set_stand_together_under_its_name():
    rows: list[tuple[object, ...]] = [("sums", "early", 1), ("words", "early", 2), ("sums", "late", 3)]
    body = [line.split() for line in lines_of(("data set", "stage", "completions"), rows)[3:-1]]
    assert body == [["sums", "early", "1"], ["late", "3"], ["words", "early", "2"]]


def test_a_mean_is_over_the_values_that_are_there():
    mean = Mean()
    assert str(mean) == "–"
    for value in (0.5, None, 0.25, None):
        mean.add(value)
    assert (str(mean), mean.count, mean.missing) == ("0.3750", 2, 2)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        ([1.0], "1"),
        ([1 / 3], "0.333"),
        ([None], "gate"),
        ([], "–"),
        ([0.75, 0.25, 0.75], "0.25 or 0.75"),
        ([None, 0.5], "0.5 or gate"),
        ([0.0], "0"),
    ],
)
def test_a_weight_is_a_share_or_a_gate(weights: list[float | None], text: str):
    assert weight_text(weights) == text


def missing(status: str, detail: str) -> Component:
    return Component.model_validate({"score": None, "weight": 1.0, "status": status, "ms": 1.0, "detail": detail})


RIGHT = Component(score=1.0, weight=1.0, status="ok", ms=1.0)


def test_the_most_common_reason_comes_first():
    reasons = Reasons()
    reasons.add("rare", "a:1")
    for number in range(1200):
        reasons.add("common\nreason", f"a:{number + 2}")
    assert reasons.lines() == ["    1,200  common reason (first: a:2)", "        1  rare (first: a:1)"]
    assert reasons.total == 1201


def test_every_grader_without_a_score_is_counted_even_where_there_is_a_reward():
    reasons = Reasons()
    components = {"one": missing("error", "timeout"), "two": RIGHT, "three": missing("abstain", "")}
    result = GradeResult(item_id="", status="ok", reward=0.5, components=components)
    reasons.add_result(result, "a:1")
    assert reasons.lines() == [
        "        1  error: one: timeout (first: a:1)",
        "        1  abstain: three: no reason given (first: a:1)",
    ]


def test_where_no_grader_was_asked_the_reason_of_the_result_counts():
    reasons = Reasons()
    reasons.add_result(GradeResult(item_id="", status="error", reward=None, reason="too long", components={}), "a:1")
    assert reasons.lines() == ["        1  error: too long (first: a:1)"]


def test_a_completion_with_all_scores_has_none():
    reasons = Reasons()
    reasons.add_result(GradeResult(item_id="", status="ok", reward=1.0, components={"one": RIGHT}), "a:1")
    assert (reasons.total, reasons.lines()) == (0, [])


def test_only_the_first_words_and_the_first_few_are_shown():
    reasons = Reasons()
    for number in range(10):
        reasons.add(f"{number} " + "x" * 200, "a:1")
    lines = reasons.lines()
    assert lines[0] == f"        1  0 {'x' * 158}... (first: a:1)"
    assert lines[8:] == ["           ... and 2 other reasons"]


def test_reasons_that_are_all_different_do_not_fill_the_memory():
    reasons = Reasons()
    for number in range(10_100):
        reasons.add(f"number {number}", f"a:{number}")
    assert reasons.lines()[0] == "      100  other reasons (first: a:10000)"
    assert reasons.total == 10_100


def test_a_reason_that_quotes_a_model_cannot_command_the_terminal():
    reasons = Reasons()
    reasons.add("\x1b[2Jall gone\r\nand half a pair: \udcff", "a:1")
    assert reasons.lines() == ["        1  �[2Jall gone and half a pair: � (first: a:1)"]
