"""Why scores are missing: the most common reasons, with the place of the first of each."""

from posttrain.dataserver.offline.reasons import Reasons
from posttrain.dataserver.schemas import Component, GradeResult


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
