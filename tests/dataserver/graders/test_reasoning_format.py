import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dataserver.graders.base import Abstain, Score
from posttrain.dataserver.graders.reasoning_format import ReasoningFormat
from posttrain.dataserver.graders.text.completions import GradeInput, ReasoningTags, split_completion

TAGS = ReasoningTags()
PIECES = st.lists(st.sampled_from(["<think>", "</think>", "a", " ", "\n", "<", "é\ud800"]), max_size=8).map("".join)


def score(text: str, tags: ReasoningTags = TAGS, grader: ReasoningFormat | None = None) -> Score:
    reasoning, answer = split_completion(text, tags)
    given = (grader or ReasoningFormat()).score(GradeInput(text, answer, reasoning, tags=tags))
    assert isinstance(given, Score)
    return given


@given(PIECES, st.booleans())
def test_the_full_score_is_for_the_whole_form_alone(text: str, in_prompt: bool) -> None:
    tags = ReasoningTags(opened_in_prompt=in_prompt)
    # In the full format, the answer contains no tag, is not empty and starts on its own line.
    inner = text.strip().removeprefix("" if in_prompt else "<think>")
    reasoning, close, answer = inner.partition("</think>")
    begins = in_prompt or text.strip().startswith("<think>")
    no_more_tags = not any(tag in part for part in (reasoning, answer) for tag in ("<think>", "</think>"))
    right = bool(begins and close and reasoning.strip() and answer.strip() and no_more_tags)

    assert (score(text, tags, ReasoningFormat(graded=False)).value == 1) == right
    assert (score(text, tags).value == 1) == (right and answer[0] == "\n")
    assert 0 <= score(text, tags).value <= 1


def test_the_parts_of_the_score_add_up() -> None:
    # opened 0.125, not at the start, closed 0.125, in order 0.125, answer 0.5, same line −0.1, two extra tags −0.3
    assert score("So <think>a</think> b <think>c</think> d").value == pytest.approx(0.475)


def test_a_tab_before_the_answer_costs_nothing_and_a_space_does() -> None:
    assert score("<think>a</think>\tb").value == 1
    assert score("<think>a</think> \nb").value == pytest.approx(0.9)


def test_tags_are_no_reasoning() -> None:
    assert score("<think><think></think>\nb").value == pytest.approx(0.1)  # 0.25 without reasoning, less an extra tag


def test_the_detail_names_all_faults() -> None:
    assert score("So <think> </think> ").detail == "not opened at the start, no reasoning, no answer"
    assert score("<think>a</think>\nb").detail == ""


def test_a_shorter_reasoning_than_wanted_counts_as_none() -> None:
    grader = ReasoningFormat(min_reasoning_chars=3, graded=False)

    assert score("<think> ab </think>\nc", grader=grader).value == 0
    assert score("<think> abc </think>\nc", grader=grader).value == 1


@pytest.mark.parametrize("nothing", ["\u200b", "\u2060 \ufeff", "\u3164", "\u2800", "\ufe0f", "\U000e0041", "\x00"])
def test_what_cannot_be_seen_is_neither_reasoning_nor_an_answer(nothing: str) -> None:
    assert score(f"<think>{nothing}</think>\nc").value == 0.25
    assert score(f"<think>a</think>\n{nothing}").value == 0.25
    assert score(f"<think>a{nothing * 9}</think>\nc", grader=ReasoningFormat(min_reasoning_chars=9)).value == 0.25


def test_without_tags_in_the_data_set_there_is_nothing_to_say() -> None:
    with pytest.raises(Abstain):
        ReasoningFormat().score(GradeInput("a", "a"))
