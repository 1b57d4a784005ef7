"""Text and structure graders: any text gets a score, and a long text gets one quickly."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dataserver.graders.base import Grader, Score
from posttrain.dataserver.graders.catalogue import built_in_graders
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags, split_completion

SETTINGS: list[tuple[str, dict[str, Any], Any]] = [
    ("choice", {}, "B"),
    ("choice", {"ignore_case": True}, "B"),
    ("category_match", {"allowed_categories": ["a", "a b", "b"], "contained_score": 0.5}, "a"),
    ("regex", {"pattern": r"(?P<answer>a*)*b", "match": "search", "compare": "gold"}, "a"),
    ("contains", {"whole_words": True, "fraction": True, "forbidden": ["x"]}, ["a", "b c"]),
    ("json_valid", {"require": "any", "fenced_score": 0.5}, None),
    ("json_equal", {"ignore_order": True}, [1, {"a": 2}]),
    ("json_equal", {"relative_tolerance": 0.5}, [1, {"a": 2}]),
    ("json_schema", {"inline": {"items": {"type": "object"}, "multipleOf": 0.5}, "partial": 0.5}, None),
    ("xml_schema", {"inline": {"root": "a", "required_children": ["b"]}, "partial": 0.5, "fenced_score": 0.5}, None),
    ("repetition", {}, None),
    ("reasoning_format", {}, None),
    ("tag_format", {"mode": "approximate"}, None),
    ("tag_format", {}, None),
]
SIGNS = ("a", "B", " ", "\n", "1", "1e999", "{", "[", "]", '"a": ', ",", "NaN", "\0", "\ud800", "\u0301", "&x;")
MARKS = ("(A)", "Answer: ", "\\boxed{", "}", "```", "<a>", "</a>", "<b/>", "<think>", "</think>", "<SOLUTION>")
PIECES = st.sampled_from(SIGNS + MARKS) | st.text(st.characters(exclude_categories=()), max_size=3)
LONG = ["a", " ", "[", "[1,", '{"a":', "<a>", "<think>", "\\boxed{{a}", "answers are    ", "A\n", "A, ", "\u0301\u0316"]


def build(name: str, params: dict[str, Any]) -> Grader:
    return built_in_graders()[name].model_validate(params)


def score(grader: Grader, text: str, gold: Any) -> float:
    tags = ReasoningTags() if grader.needs_tags else None
    reasoning, answer = split_completion(text, tags)
    given = grader.score(GradeInput(text, answer, reasoning, gold=gold, tags=tags))
    return given.value if isinstance(given, Score) else given


@pytest.mark.parametrize(("name", "params", "gold"), SETTINGS)
@given(text=st.lists(PIECES, max_size=20).map("".join))
def test_any_text_has_a_score(name: str, params: dict[str, Any], gold: Any, text: str) -> None:
    assert 0 <= score(build(name, params), text, gold) <= 1


@pytest.mark.parametrize(("name", "params", "gold"), SETTINGS)
def test_a_text_of_a_million_characters_takes_seconds_at_most(name: str, params: dict[str, Any], gold: Any) -> None:
    grader = build(name, params)
    begin = time.process_time()

    for piece in LONG:
        score(grader, (piece * 1_000_000)[:1_000_000], gold)

    assert time.process_time() - begin < 60
