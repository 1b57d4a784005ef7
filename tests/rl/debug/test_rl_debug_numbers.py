"""The numbers of toolkit-rl-debug against values computed by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dataserver.schemas import Sample, Status, WireMessage
from posttrain.rl.debug.groups import (
    Group,
    Summary,
    asked_markers,
    marker_counts,
    markers_in,
    percentile,
    said_by_graders,
    summarise,
)
from posttrain.rl.debug.report import one_line, printable
from posttrain.rl.rollout.rollout import Prompt
from rl.written_rollouts import a_rollout

Said = tuple[str, float | None, Status]


def a_group(*said: Said, asked: str = "Why?", cut: int = 0) -> Group:
    """A group of completions from texts, rewards and statuses; one token per character, the first `cut` truncated."""
    sample = Sample(sample_id="a:0", dataset="a", slot=0, messages=[WireMessage(role="user", content=asked)])
    prompt = Prompt("a:0", "a", 0, (1, 2, 3), asked, False)
    completions = []
    for number, (text, reward, status) in enumerate(said):
        made = a_rollout(prompt, number, range(len(text)), reward, status=status, was_cut=number < cut)
        completions.append(replace(made, text=text))
    return Group(0, prompt, sample, tuple(completions))


def about(value: float) -> Any:
    return pytest.approx(value)


def test_the_summary_is_the_one_by_hand():
    groups = [
        # Mean 0.5, standard deviation √(4 · 0.25 / 3).
        a_group(("a", 0.0, "ok"), ("ab", 1.0, "ok"), ("a", 0.0, "ok"), ("abc", 1.0, "ok"), cut=1),
        a_group(("a", 0.25, "ok"), ("a", 0.25, "ok"), ("bb", None, "abstain"), ("a", None, "error")),
        # A single reward has no deviation, and its group is not counted as one of equal rewards.
        a_group(("abcd", 1.0, "ok"), ("abcd", None, "error")),
    ]
    assert summarise(groups) == Summary(
        completions=10,
        reward=about(3.5 / 7),
        reward_std=about(math.sqrt(1 / 3) / 2),
        zero_variance_share=0.5,
        abstained=1,
        failed=2,
        truncated_share=0.1,
        # 3 of 4, 2 of 4, and 1 of 2.
        distinct_share=0.6,
        tokens=about((1 + 2 + 1 + 3 + 1 + 1 + 2 + 1 + 4 + 4) / 10),
    )
    assert [group.is_alike for group in groups] == [False, False, True]
    assert [component.score for _, component in said_by_graders(groups)["it"]] == [
        *(0.0, 1.0, 0.0, 1.0),
        *(0.25, 0.25, None, None),
        *(1.0, None),
    ]


def test_nothing_has_no_mean():
    assert summarise([a_group()]) == Summary(0, None, None, None, 0, 0, None, None, None)


def test_percentiles_are_the_nearest_ranks():
    lengths = [30, 10, 20, 40]
    # 50 % of four values are two; 90 % round up to four.
    assert [percentile(lengths, percent) for percent in (25, 50, 51, 90, 100)] == [10, 20, 30, 40, 40]
    assert percentile([7], 1) == 7


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(1, 100))
def test_so_many_percent_are_within_the_percentile_and_with_the_next_lower_value_they_are_not(
    values: list[int], percent: int
):
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert sum(value < found for value in values) * 100 < percent * len(values)


def test_markers_are_tags_control_tokens_boxes_and_hashes():
    text = r"<think>1 < 2 and 3 > 2</think> <|im_end|> \boxed{2} #### 2 <answer_1> <2> a<b <http://x>"
    assert markers_in(text) == {"<think>", "</think>", "<|im_end|>", r"\boxed", "####", "<answer_1>"}


def test_a_marker_counts_once_for_each_completion_and_belongs_to_the_task_if_all_prompts_have_it():
    groups = [
        a_group(("<b> <b>", 1.0, "ok"), ("<b> ####", 0.0, "ok"), asked="<b> #### <i>"),
        a_group(("", 1.0, "ok"), asked="#### <b>?"),
    ]
    assert marker_counts(groups) == {"<b>": 2, "####": 1}
    assert asked_markers(groups) == ["####", "<b>"]
    assert asked_markers(groups[:1]) == []


def test_what_a_model_says_does_not_move_the_cursor():
    assert printable("a\x1b[2J\rb\nc") == "a\ufffd[2J\ufffdb\nc"
    assert one_line("a\nb") == "a ⏎ b"


@given(st.text(), st.integers(20, 60))
def test_a_line_is_no_longer_than_wanted_and_has_both_ends_of_the_text(text: str, limit: int):
    line = one_line(text, limit)
    whole = " ⏎ ".join(printable(text).split("\n"))
    assert len(line) <= limit and "\n" not in line
    assert line == whole or (whole.startswith(line.split(" … ")[0]) and whole.endswith(line[-5:]))
