"""Summaries over iterations, compared with numbers worked out by hand."""

import pytest
from journal_rows import rewarded, row
from sqlalchemy import Engine

from posttrain.dataserver.journal.reader import GroupCell, JournalSummaries, RewardCell, RunSummary, ScoreCell
from posttrain.dataserver.journal.writer import JournalWriter
from posttrain.dataserver.schemas import Component


@pytest.fixture
def summaries(engine: Engine) -> JournalSummaries:
    """Summarizes what `writer` wrote."""
    return JournalSummaries(engine)


def scored(**scores: float | None) -> dict[str, Component]:
    return {
        name: Component(score=score, weight=0.5, status="abstain" if score is None else "ok", ms=1.0)
        for name, score in scores.items()
    }


def test_an_empty_journal_has_no_runs(summaries: JournalSummaries):
    assert summaries.runs() == []
    assert summaries.rewards("run", 0) == summaries.scores("run", 0) == summaries.groups("run", 0) == []
    assert summaries.grader_milliseconds("run", 10) == {}


def test_runs_come_with_the_newest_first(summaries: JournalSummaries, writer: JournalWriter):
    writer.add_durable([row(0, run_id="a", iteration=9), row(1, run_id=""), row(2, run_id="a", iteration=3)])
    assert summaries.runs() == [RunSummary("a", 2, 9, 3), RunSummary("", 1, 0, 2)]


def test_rewards_are_summed_up_per_data_set_and_iteration(summaries: JournalSummaries, writer: JournalWriter):
    writer.add_durable(rewarded(0.0, 0.5, 1.0, None, request_id="a", iteration=0))
    writer.add_durable(rewarded(None, None, request_id="b", iteration=1, dataset="words"))
    writer.add_durable([row(2, item_id="e", status="error", reward=None), row(3, run_id="other")])
    writer.add_durable(rewarded(0.25, request_id="c", iteration=4, split="validation"))
    assert summaries.rewards("run", 0) == [
        RewardCell("train", "sums", 0, ok=3, abstain=1, error=1, mean=0.5, low=0.0, high=1.0),
        RewardCell("train", "words", 1, ok=0, abstain=2, error=0, mean=None, low=None, high=None),
        RewardCell("validation", "sums", 4, ok=1, abstain=0, error=0, mean=0.25, low=0.25, high=0.25),
    ]
    assert [cell.iteration for cell in summaries.rewards("run", 1)] == [1, 4]


def test_iterations_are_taken_together_from_multiples_of_the_width(summaries: JournalSummaries, writer: JournalWriter):
    for iteration in range(6):
        writer.add_durable([row(iteration, iteration=iteration, reward=iteration / 8)])
    cells = summaries.rewards("run", 0, width=4)
    assert [(cell.iteration, cell.ok, cell.mean) for cell in cells] == [(0, 4, 0.1875), (4, 2, 0.5625)]


def test_scores_are_summed_up_per_grader_and_missing_ones_do_not_count(
    summaries: JournalSummaries, writer: JournalWriter
):
    writer.add_durable(
        [
            row(0, components=scored(exact=1.0, style=0.25)),
            row(1, components=scored(exact=0.0, style=None)),
            row(2, components=scored(exact=None, style=None), status="abstain", reward=None),
            row(3, components={}, iteration=1),
        ]
    )
    assert summaries.scores("run", 0) == [
        ScoreCell("train", "sums", "exact", 0, count=2, mean=0.5, low=0.0, high=1.0),
        ScoreCell("train", "sums", "style", 0, count=1, mean=0.25, low=0.25, high=0.25),
    ]


def test_a_grader_may_have_any_name(summaries: JournalSummaries, writer: JournalWriter):
    name = "a.b\"c' $[0] <i>ü"
    writer.add_durable([row(components=scored(**{name: 0.5}))])
    assert [(cell.grader, cell.mean) for cell in summaries.scores("run", 0)] == [(name, 0.5)]


def test_a_group_has_one_prompt_in_one_slot_of_one_iteration(summaries: JournalSummaries, writer: JournalWriter):
    groups = [
        rewarded(0.5, 0.5, 0.5, request_id="equal", slot=0),
        rewarded(0.0, 1.0, request_id="different", slot=1),
        rewarded(1.0, request_id="alone", slot=2),
        rewarded(1.0, None, request_id="one of two", slot=3),
        rewarded(0.0, 0.0, None, request_id="two of three", slot=4),
        rewarded(0.5, 0.5, request_id="no slot", slot=None),
        rewarded(0.5, 0.5, request_id="other row", slot=0, sample_id="sums:1:abc"),
        rewarded(0.0, 0.0, request_id="later", slot=0, iteration=1),
        rewarded(0.0, 1.0, request_id="other run", slot=0, run_id="other"),
    ]
    writer.add_durable([each for group in groups for each in group])
    assert summaries.groups("run", 0) == [
        GroupCell("train", "sums", 0, groups=5, zero_variance=4),
        GroupCell("train", "sums", 1, groups=1, zero_variance=1),
    ]
    assert summaries.groups("run", 0, width=2) == [GroupCell("train", "sums", 0, groups=6, zero_variance=5)]


def test_a_group_may_come_in_several_requests(summaries: JournalSummaries, writer: JournalWriter):
    writer.add_durable([*rewarded(1.0, request_id="rank 0"), *rewarded(0.0, request_id="rank 1")])
    assert summaries.groups("run", 0) == [GroupCell("train", "sums", 0, groups=1, zero_variance=0)]


def test_the_times_of_graders_are_those_of_the_newest_rows(summaries: JournalSummaries, writer: JournalWriter):
    times = ({"exact": 5.0}, {"exact": 2.0, "judge": 900.0}, {"exact": 1.5})
    components = [
        {name: Component(score=1.0, weight=1.0, status="ok", ms=ms) for name, ms in each.items()} for each in times
    ]
    writer.add_durable(row(number, components=each) for number, each in enumerate(components))
    assert summaries.grader_milliseconds("run", 2) == {"exact": [1.5, 2.0], "judge": [900.0]}
