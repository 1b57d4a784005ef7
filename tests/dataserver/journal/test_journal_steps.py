"""Reported steps: one report for each run and step, and summaries compared with numbers worked out by hand."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, func, select

from dataserver.journal.journal_rows import row
from posttrain.dataserver.journal.database import memory_database, step_groups, step_numbers, steps
from posttrain.dataserver.journal.reader import JournalReader
from posttrain.dataserver.journal.steps import (
    GroupRewardCell,
    GroupUse,
    NumberCell,
    StepStore,
    StepSummaries,
    VerdictCell,
)
from posttrain.dataserver.journal.writer import JournalWriter
from posttrain.dataserver.step_reports import GroupReport, StepReport


@pytest.fixture
def store(engine: Engine) -> StepStore:
    return StepStore(engine)


@pytest.fixture
def summaries(engine: Engine) -> StepSummaries:
    return StepSummaries(engine)


def a_group(reward: float | None, **changes: Any) -> GroupReport:
    usual = {"slot": 0, "sample_id": "sums:0:abc", "dataset": "sums", "trained": True, "mean_reward": reward}
    return GroupReport(**usual | changes)


def a_report(step: int, *groups: GroupReport, run_id: str = "run", first: bool = False, **numbers: Any) -> StepReport:
    return StepReport(run_id=run_id, step=step, numbers=numbers, groups=list(groups), first=first)


def test_asked_and_trained_rewards_are_told_apart(store: StepStore, summaries: StepSummaries):
    store.put(
        a_report(
            3,
            a_group(1.0, verdict="reward_spread", trained=False),
            a_group(0.5, attempt=1, origin="substitute"),
            a_group(0.25, slot=1, origin="carried"),
            a_group(None, slot=2, verdict="unscored: 8 of 8", trained=False),
            a_group(0.0, slot=3, origin="replayed"),
            a_group(0.75, slot=4, verdict="reward_spread"),
            a_group(0.0, slot=4, attempt=1, origin="spare", trained=False),
            a_group(0.75, dataset="words"),
        )
    )
    # Asked: (1 + 0.25 + 0.75) / 3; trained: (0.5 + 0.25 + 0 + 0.75) / 4. The replayed group was asked earlier.
    assert summaries.rewards("run", 0) == [
        GroupRewardCell("sums", 3, asked=3, asked_reward=2 / 3, trained=4, trained_reward=0.375),
        GroupRewardCell("words", 3, asked=1, asked_reward=0.75, trained=1, trained_reward=0.75),
    ]
    assert summaries.verdicts("run", 0) == [
        VerdictCell("sums", "", 3, 4),
        VerdictCell("sums", "reward_spread", 3, 2),
        VerdictCell("sums", "unscored: 8 of 8", 3, 1),
        VerdictCell("words", "", 3, 1),
    ]


def test_what_became_of_a_completion_s_group_is_known_by_where_it_was_asked(
    store: StepStore, summaries: StepSummaries, writer: JournalWriter, reader: JournalReader
):
    asked = {"iteration": 2, "slot": 1, "attempt": 1, "sample_id": "sums:7:abc"}
    writer.add_durable([row(0, run_id="run", **asked)])
    store.put(a_report(3, a_group(1.0, **asked, origin="substitute", verdict="reward_spread: 0"), a_group(0.5)))
    others = [{"iteration": 3}, {"slot": 0}, {"attempt": 0}, {"sample_id": "sums:8:abc"}, {"iteration": None}]
    store.put(a_report(5, a_group(0.5), *(a_group(1.0, **{**asked, **each}) for each in others)))
    store.put(a_report(6, a_group(1.0, **asked), run_id="another"))
    store.put(a_report(9, a_group(1.0, **asked, origin="replayed")))
    kept = reader.row(1)
    assert kept is not None
    found = [GroupUse(3, True, "reward_spread: 0", "substitute"), GroupUse(9, True, "", "replayed")]
    assert summaries.uses_of(kept) == found
    assert summaries.uses_of(replace(kept, slot=None)) == summaries.uses_of(replace(kept, split="validation")) == []


def test_without_a_reward_there_is_no_mean(store: StepStore, summaries: StepSummaries):
    store.put(a_report(0, a_group(None, verdict="unscored", trained=False)))
    assert summaries.rewards("run", 0) == [GroupRewardCell("sums", 0, 0, None, 0, None)]


def test_numbers_are_chosen_by_name_or_beginning(store: StepStore, summaries: StepSummaries):
    for step, value in enumerate((1.0, 3.0, None)):
        store.put(a_report(step, **{"async/age_mean": value, "filters/length": 2.0, "filtersX": 9.0, "loss": 0.5}))
    assert summaries.numbers("run", ["async/age_mean"], "filters/", 0, width=4) == [
        NumberCell("async/age_mean", 0, 2, 2.0, 1.0, 3.0),
        NumberCell("filters/length", 0, 3, 2.0, 2.0, 2.0),
    ]
    assert [cell.iteration for cell in summaries.numbers("run", ["loss"], "filters/", 1)] == [1, 2, 1, 2]


def test_steps_are_taken_together_from_multiples_of_the_width(store: StepStore, summaries: StepSummaries):
    for step in range(6):
        store.put(a_report(step, a_group(step / 8)))
    cells = summaries.rewards("run", 0, width=4)
    assert [(cell.iteration, cell.asked, cell.asked_reward) for cell in cells] == [(0, 4, 0.1875), (4, 2, 0.5625)]


def test_a_repeated_report_replaces_the_one_before(store: StepStore, summaries: StepSummaries):
    store.put(a_report(1, a_group(1.0), a_group(0.0), loss=1.0, other=2.0))
    for _ in range(2):
        store.put(a_report(1, a_group(0.5), loss=3.0))
    assert summaries.rewards("run", 0) == [GroupRewardCell("sums", 1, 1, 0.5, 1, 0.5)]
    assert summaries.numbers("run", ["loss", "other"], "filters/", 0) == [NumberCell("loss", 1, 1, 3.0, 3.0, 3.0)]


def test_a_resumed_run_forgets_what_it_reported_of_later_steps(store: StepStore, summaries: StepSummaries):
    for step in range(6):
        store.put(a_report(step, a_group(1.0), loss=1.0))
        store.put(a_report(step, a_group(1.0), run_id="other"))
    store.put(a_report(3, a_group(0.0), loss=2.0, first=True))
    assert [(cell.iteration, cell.asked_reward) for cell in summaries.rewards("run", 0)] == [
        (0, 1.0),
        (1, 1.0),
        (2, 1.0),
        (3, 0.0),
    ]
    assert [cell.mean for cell in summaries.numbers("run", ["loss"], "filters/", 0)] == [1.0, 1.0, 1.0, 2.0]
    assert len(summaries.rewards("other", 0)) == 6
    assert {run.run_id: run.last_step for run in summaries.runs()} == {"run": 3, "other": 5}


def test_the_same_report_at_once_is_stored_once(store: StepStore, summaries: StepSummaries):
    reports = [a_report(5, *[a_group(value)] * 20, loss=value) for value in (0.0, 1.0)]
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(store.put, reports * 10))
    (cell,) = summaries.rewards("run", 0)
    (number,) = summaries.numbers("run", ["loss"], "filters/", 0)
    assert (cell.asked, cell.asked_reward) == (20, number.mean)


def test_what_no_database_can_store_is_replaced(store: StepStore, summaries: StepSummaries):
    text = "a\0b"
    group = a_group(1.0, dataset=text, verdict=text)
    store.put(StepReport(run_id=text, step=0, numbers={"filters/" + text: 1.0}, groups=[group]))
    (run,) = summaries.runs()
    assert (run.run_id, summaries.verdicts(run.run_id, 0)) == ("a␀b", [VerdictCell("a␀b", "a␀b", 0, 1)])
    assert [cell.name for cell in summaries.numbers(run.run_id, [], "filters/", 0)] == ["filters/a␀b"]


@pytest.fixture
def memory() -> Iterator[Engine]:
    engine = memory_database()
    yield engine
    engine.dispose()


def test_in_memory_only_the_newest_reports_are_kept(memory: Engine):
    store = StepStore(memory, most_rows=10)
    for step in range(8):
        store.put(a_report(step, a_group(1.0), a_group(0.5), loss=1.0))
    # Each report has three rows.
    assert [cell.iteration for cell in StepSummaries(memory).rewards("run", 0)] == [5, 6, 7]
    store.put(a_report(9, *[a_group(1.0)] * 50))
    with memory.connect() as connection:
        tables = (steps, step_numbers, step_groups)
        assert [connection.scalar(select(func.count()).select_from(table)) for table in tables] == [1, 0, 50]
