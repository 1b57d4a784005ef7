"""The data sent to the dashboard page."""

from datetime import timedelta

import pytest
from fastapi.encoders import jsonable_encoder
from sqlalchemy import Engine

from dataserver.journal.journal_rows import ROW, rewarded, row
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.reader import RowFilter
from posttrain.dataserver.journal.records import JournalRow
from posttrain.dataserver.journal.writer import JournalStats, JournalWriter
from posttrain.dataserver.web.dashboard import (
    CompletionsQuery,
    cell_width,
    completions,
    dashboard,
    latencies,
    percentile,
)


def keep(engine: Engine, *rows: JournalRow) -> None:
    writer = JournalWriter(engine, JournalConfig())
    writer.add_durable(rows)
    writer.close()


def test_an_empty_journal_has_counters_and_nothing_else(engine: Engine):
    shown = jsonable_encoder(dashboard(engine, JournalStats(0, 3, 2, "disk full"), None))
    assert shown.pop("journal") == {"written": 0, "dropped": 3, "queued": 2, "last_error": "disk full"}
    assert (shown.pop("width"), shown.pop("since")) == (1, 0)
    assert not any(shown.values())


def test_the_run_of_the_newest_row_is_shown_unless_another_is_asked_for(engine: Engine):
    later = ROW.created_at + timedelta(minutes=1)
    keep(engine, row(0, run_id="a", iteration=7, stage="hard"), row(1, run_id="", created_at=later))
    assert dashboard(engine, None, None).run == ""
    assert dashboard(engine, None, "b").run is None
    shown = dashboard(engine, None, "a")
    assert (shown.run, shown.iteration, shown.stage, shown.updated_at) == ("a", 7, "hard", ROW.created_at)
    assert [run.run_id for run in shown.runs] == ["", "a"]
    assert shown.journal is None


@pytest.mark.parametrize(
    ("last_iteration", "width"), [(0, 1), (239, 1), (240, 2), (479, 2), (480, 4), (959, 4), (960, 8), (10**6, 8192)]
)
def test_cells_are_as_narrow_as_240_points_allow(last_iteration: int, width: int):
    assert cell_width(last_iteration) == width


def test_a_long_run_is_shown_in_wider_cells(engine: Engine):
    keep(engine, *(row(number, iteration=number, reward=float(number % 2)) for number in (0, 1, 2, 500)))
    shown = dashboard(engine, None, None)
    assert (shown.width, [(cell.iteration, cell.ok) for cell in shown.rewards]) == (4, [(0, 3), (500, 1)])
    assert [(cell.iteration, cell.ok) for cell in shown.recent] == [(500, 1)]


def test_the_cells_since_an_iteration_are_the_last_of_all_cells(engine: Engine):
    keep(engine, *(each for n in range(600) for each in rewarded(0.0, 1.0, request_id=f"q{n}", iteration=n)))
    everything, some = dashboard(engine, None, "run"), dashboard(engine, None, "run", since=513)
    assert (some.since, some.width) == (512, 4)
    for name in ("rewards", "scores", "groups"):
        every, last = getattr(everything, name), getattr(some, name)
        assert len(every) == 150
        assert last == every[128:]


@pytest.mark.parametrize(("since", "first"), [(-5, 0), (10**30, 3)])
def test_a_since_outside_the_run_means_its_nearest_end(since: int, first: int, engine: Engine):
    keep(engine, *(row(number, iteration=number) for number in range(4)))
    shown = dashboard(engine, None, None, since)
    assert (shown.since, shown.rewards[0].iteration) == (first, first)


def test_recent_rewards_are_of_the_ten_iterations_up_to_the_newest_row(engine: Engine):
    went_back = row(99, iteration=20, request_id="after a restart")
    keep(engine, *(row(number, iteration=number) for number in range(30)), went_back)
    assert [cell.iteration for cell in dashboard(engine, None, None).recent] == list(range(11, 21))


def test_percentiles_are_values_that_were_measured():
    times = [float(value) for value in range(20, 0, -1)]
    assert (percentile(times, 50), percentile(times, 95)) == (10.0, 19.0)
    assert (percentile([7.0], 50), percentile([7.0], 95)) == (7.0, 7.0)
    assert (percentile([1.0, 9.0], 50), percentile([1.0, 9.0], 95)) == (1.0, 9.0)


def test_the_slowest_grader_comes_first():
    shown = latencies({"fast": [1.0, 1.0], "slow": [1.0, 50.0], "also fast": [1.0]})
    assert [(each.grader, each.count, each.p95) for each in shown] == [
        ("slow", 2, 50.0),
        ("also fast", 1, 1.0),
        ("fast", 2, 1.0),
    ]


def test_a_page_says_where_the_next_one_begins(engine: Engine):
    keep(engine, *(row(number) for number in range(5)))
    first = completions(engine, RowFilter(), 2)
    second = completions(engine, RowFilter(), 2, first.before)
    third = completions(engine, RowFilter(), 2, second.before)
    assert [[each.id for each in page.completions] for page in (first, second, third)] == [[5, 4], [3, 2], [1]]
    assert (first.before, second.before, third.before) == (4, 2, None)


@pytest.mark.parametrize(
    ("iteration", "first", "last"), [(None, None, None), ("12", 12, 12), ("0", 0, 0), ("3-12", 3, 12)]
)
def test_iterations_are_one_or_a_range(iteration: str | None, first: int | None, last: int | None):
    chosen = CompletionsQuery(run="run", split="train", status="ok", iteration=iteration).row_filter()
    assert chosen == RowFilter(run_id="run", split="train", status="ok", first_iteration=first, last_iteration=last)


def test_times_go_out_with_their_zone(engine: Engine):
    keep(engine, ROW)
    (excerpt,) = completions(engine, RowFilter(), 1).completions
    assert jsonable_encoder(excerpt)["created_at"] == "2026-03-01T12:00:00+00:00"
    assert jsonable_encoder(dashboard(engine, None, None))["updated_at"] == "2026-03-01T12:00:00+00:00"
