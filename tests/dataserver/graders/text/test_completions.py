"""A completion is split into its reasoning and its answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from posttrain.dataserver.graders.text.completions import Parts, ReasoningTags, split_completion

TAGS = ReasoningTags()
IN_PROMPT = ReasoningTags(opened_in_prompt=True)


@pytest.mark.parametrize(
    ("completion", "parts"),
    [
        ("<think>hm</think>72", Parts("hm", "72")),
        ("<think></think>72", Parts("", "72")),
        ("<think>hm</think>", Parts("hm", "")),
        ("First <think>hm</think> 72 ", Parts("hm", " 72 ")),
        # The answer is what follows the last closing tag, so nothing in a second block counts.
        ("<think>a</think>71<think>b</think>72", Parts("a</think>71<think>b", "72")),
        ("<think>a</think>71</think>72", Parts("a</think>71", "72")),
        ("<think>a</think>71<think>b", Parts("a", "71<think>b")),
        ("<think>72", Parts(None, None)),
        ("72", Parts(None, None)),
        ("hm</think>72", Parts(None, None)),
        ("</think>72<think>", Parts(None, None)),
        ("<THINK>hm</THINK>72", Parts(None, None)),
        ("", Parts(None, None)),
    ],
)
def test_the_answer_is_what_follows_the_last_closing_tag(completion: str, parts: Parts) -> None:
    assert split_completion(completion, TAGS) == parts


@pytest.mark.parametrize(
    ("completion", "parts"),
    [
        ("hm</think>72", Parts("hm", "72")),
        ("<think>hm</think>72", Parts("hm", "72")),
        ("</think>72", Parts("", "72")),
        ("72", Parts(None, None)),
    ],
)
def test_the_prompt_may_have_opened_the_reasoning(completion: str, parts: Parts) -> None:
    assert split_completion(completion, IN_PROMPT) == parts


def test_without_tags_all_of_it_is_the_answer() -> None:
    assert split_completion("<think>hm</think>72", None) == Parts(None, "<think>hm</think>72")


@given(reasoning=st.text(), answer=st.text())
def test_what_was_put_together_comes_apart(reasoning: str, answer: str) -> None:
    parts = split_completion(f"<think>{reasoning}</think>{answer}", TAGS)
    if "</think>" not in answer:
        assert parts == Parts(reasoning, answer)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "/think>", "72", " "])).map("".join))
def test_an_answer_holds_no_closing_tag_and_stands_at_the_end(completion: str) -> None:
    for tags in (TAGS, IN_PROMPT):
        parts = split_completion(completion, tags)
        assert (parts.answer is None) == (parts.reasoning is None)
        if parts.answer is not None:
            assert completion.endswith(f"</think>{parts.answer}")
            assert "</think>" not in parts.answer


@pytest.mark.parametrize(("open_", "close"), [("<t>", "<t>"), ("<t>", "x<t>"), ("<t>y", "<t>"), ("", "x")])
def test_tags_that_cannot_be_told_apart_are_refused(open_: str, close: str) -> None:
    with pytest.raises(ValidationError):
        ReasoningTags(open=open_, close=close)
