"""Verifiable instructions: each is followed or not, and rows that cannot be judged are refused."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.ifeval import CHECKS, IfEval
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError

AT_LEAST = {"relation": "at least"}
BELOW = {"relation": "less than"}
FRENCH = "Le train part à sept heures et demie, nous devons donc nous dépêcher."

# Instruction, arguments, responses that follow it, responses that do not.
TABLE: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    ("keywords:existence", {"keywords": ["cat", "dog"]}, ["A Dog, a cat"], ["a dog", "c at dog"]),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, **AT_LEAST}, ["cat Cat", "cat cats"], ["cat"]),
    ("keywords:frequency", {"keyword": "cat", "frequency": 2, **BELOW}, ["cat", "dog"], ["cat cat", "cat cat cat"]),
    ("keywords:forbidden_words", {"forbidden_words": ["cat", "c++"]}, ["concatenate", "c"], ["A CAT.", "in c++ it"]),
    ("keywords:letter_frequency", {"letter": "e", "let_frequency": 2, "let_relation": "at least"}, ["eE"], ["e", "x"]),
    ("language:response_language", {"language": "fr"}, [FRENCH], ["We have to hurry up for the train."]),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, **AT_LEAST},
        ["A. B!", "A? B", "好。好。"],
        ["A", "A 3.5"],
    ),
    ("length_constraints:number_sentences", {"num_sentences": 3, **BELOW}, ["Wait... what?!", '"A." B.'], ["A. B. C."]),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "a *** b"],
        ["a", "a\n***\n\n***\nb"],
    ),
    ("length_constraints:number_words", {"num_words": 3, **AT_LEAST}, ["a b c", "a-b-c"], ["a b", "- - -"]),
    ("length_constraints:number_words", {"num_words": 3, **BELOW}, ["a b"], ["a b c"]),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
        ["a\n\nSo it is", "a\n \n\n**So**, yes"],
        ["so\n\na", "a\n\nsome", "a\n\nso\n\nb", "a\nso"],
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, ["[name] at [place]"], ["[name]", "[] []"]),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["a\nP.S. b", "p.s. b"],
        ["a P.S. b", "a\nP.S.", "PxSx b"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n- b", "  * a\n\n* b"],
        ["* a", "*a\n*b", "- a\n- b\n- c"],
    ),
    ("detectable_format:constrained_response", {}, ["My answer is no."], ["No.", "My answer is yes. My answer is no."]),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* **b**"],
        ["*a*", "** ** * *", "* a\n* b"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\na\nSection 2\nb"],
        ["Section 1\na", "Section\nSection"],
    ),
    ("detectable_format:json_format", {}, ['{"a": 1}', "```json\n[1]\n```"], ["5", '{"a": 1} x', "{", "[" * 100_000]),
    ("detectable_format:title", {}, ["<<A title>>\ntext"], ["<A title>", "<<>>", "<<  >>", "<<a\nb>>"]),
    ("combination:two_responses", {}, ["a ****** b"], ["a", "a ****** a", "a ****** ", "a ****** b ****** c"]),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Who is it?"},
        ["who is it? Me."],
        ["Who is it?", "Me. Who is it?"],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "Any more?"},
        ["a any more?", '"a Any more?" '],
        ["Any more? a", "Any more"],
    ),
    ("startend:quotation", {}, ['"a"', ' "a b"\n'], ['"a', 'a "b"', '"', '""', "'a'"]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["BIG and LOUD", "I AM"],
        ["BIG and Loud"],
    ),
    ("change_case:english_capital", {}, ["THE CAT SAT ON THE MAT."], ["The cat sat.", FRENCH.upper(), "123"]),
    ("change_case:english_lowercase", {}, ["the cat sat on the mat."], ["The cat sat.", FRENCH.lower(), "123"]),
    ("punctuation:no_comma", {}, ["a; b"], ["a, b", "a，b"]),
]
LINES = [
    pytest.param(name, arguments, response, followed, id=f"{name}-{response[:20]!r}")
    for name, arguments, right, wrong in TABLE
    for response, followed in [*((text, True) for text in right), *((text, False) for text in wrong)]
]


def row(*instructions: tuple[str, dict[str, Any] | None]) -> dict[str, Any]:
    return {
        "instruction_id_list": [name for name, _ in instructions],
        "kwargs": [arguments for _, arguments in instructions],
    }


def grade(text: str, record: dict[str, Any], **params: Any) -> Score:
    item = GradeInput(text, text, record=record)
    IfEval(**params).check_row(item)
    given = IfEval(**params).score(item)
    return given if isinstance(given, Score) else Score(given)


@pytest.mark.parametrize(("name", "arguments", "response", "followed"), LINES)
def test_an_instruction_is_followed_or_not(name: str, arguments: dict[str, Any], response: str, followed: bool) -> None:
    assert grade(response, row((name, arguments))).value == float(followed)


def test_every_instruction_is_in_the_table() -> None:
    assert {name for name, *_ in TABLE} == set(CHECKS)
    assert len(CHECKS) == 25


def test_what_was_missed_is_told() -> None:
    record = row(("punctuation:no_comma", {}), ("startend:quotation", None), ("detectable_format:title", {}))

    assert grade("a <<b>>", record) == Score(0.0, "startend:quotation")
    assert grade("a <<b>>", record, mode="fraction").value == pytest.approx(2 / 3)


def test_arguments_that_are_null_do_not_count_and_whole_floats_are_counts() -> None:
    nulls = {"keywords": None, "relation": "at least", "num_words": 2.0, "language": None}

    assert grade("a b", row(("length_constraints:number_words", nulls))) == Score(1.0)


def test_columns_can_have_other_names() -> None:
    record = {"ids": ["punctuation:no_comma"], "arguments": [{}]}

    assert grade("a", record, ids_column="ids", arguments_column="arguments") == Score(1.0)


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_answer_follows_nothing(text: str) -> None:
    assert grade(text, row(("punctuation:no_comma", {})), mode="fraction") == Score(0.0, "empty")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "'instruction_id_list' must contain a list"),
        ({"instruction_id_list": [], "kwargs": []}, "'instruction_id_list' must contain a list"),
        ({"instruction_id_list": ["punctuation:no_comma"]}, "'kwargs' must contain a list of 1"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": []}, "'kwargs' must contain a list of 1"),
        ({"instruction_id_list": ["punctuation:no_comma"], "kwargs": ["x"]}, "'kwargs' must contain a list of 1"),
        (
            row(("punctuation:no_commas", {})),
            "'punctuation:no_commas'; did you mean 'punctuation:no_comma'",
        ),
        (row(("length_constraints:number_words", {"num_words": 5})), "number_words are wrong: relation"),
        (row(("length_constraints:number_words", {"num_words": "many", **BELOW})), "number_words are wrong: num_words"),
        (row(("length_constraints:number_words", {"num_words": 1, "relation": "at most"})), "wrong: relation"),
        (row(("punctuation:no_comma", {"num_words": 1})), "no_comma are wrong: num_words"),
        (row(("language:response_language", {"language": "xx"})), "wrong: language"),
        (row(("keywords:existence", {"keywords": []})), "wrong: keywords"),
    ],
)
def test_a_row_that_cannot_be_judged_is_refused(record: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        IfEval().check_row(GradeInput("", None, record=record))


@given(st.text(st.characters(exclude_categories=()), min_size=1), st.sampled_from(TABLE))
def test_any_text_has_a_score(text: str, line: tuple[str, dict[str, Any], list[str], list[str]]) -> None:
    assert grade(text, row(line[:2])).value in (0.0, 1.0)


@pytest.mark.parametrize(
    "piece", ["a", ".", "...a", "\n", " \n", "*", "**a", "<<a", "[a", "* a\n", "P.S. ", "Section ", '"']
)
def test_a_text_of_a_million_characters_takes_seconds_at_most(piece: str) -> None:
    text = (piece * 1_000_000)[:1_000_000]
    begin = time.process_time()

    grade(text, row(*(line[:2] for line in TABLE)), mode="fraction")

    assert time.process_time() - begin < 30
