"""Stored plans: the rows of an iteration are decided once."""

import asyncio
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from adaptive_cases import SLOTS, adaptive_config
from sqlalchemy import Engine, func, select

from dataserver.journal.journal_rows import row
from posttrain.dataserver.adaptive.planner import RowPlace
from posttrain.dataserver.adaptive.sampler import AdaptiveSampler
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import open_database, plans
from posttrain.dataserver.journal.plans import Plan, PlanStore
from posttrain.dataserver.journal.writer import JournalWriter
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import ConfigError, ServerError

_requests = count()


@pytest.fixture
def loaded(tmp_path: Path) -> Loaded:
    """A config that replays all slots, as far as there are graded rows."""
    return adaptive_config(tmp_path, {"replay": {"share": {0: 1.0}}}, {"hard": 500, "more": 500})


def a_server(loaded: Loaded, engine: Engine) -> AdaptiveSampler:
    """A sampler as at startup, with nothing in memory."""
    assert loaded.config.adaptive is not None
    return AdaptiveSampler(loaded, loaded.config.adaptive, PlanStore(engine))


def ask(sampler: AdaptiveSampler, iteration: int, run_id: str = "run") -> set[RowPlace]:
    slots = asyncio.run(sampler.slots(run_id, iteration, 0, SLOTS))
    assert [slot.slot for slot in slots] == list(range(SLOTS))
    return {(slot.dataset, slot.index) for slot in slots}


def grade(
    writer: JournalWriter, loaded: Loaded, rows: Iterable[RowPlace], iteration: int, times: int = 1, **changes: Any
) -> None:
    """Store grades of these rows, half of them right."""
    writer.add_durable(
        row(
            next(_requests),
            **{
                "config_id": loaded.meta.config_id,
                "dataset": dataset,
                "row_key": loaded.datasets[dataset].key(number),
                "iteration": iteration,
                "reward": reward,
                **changes,
            },
        )
        for dataset, number in rows
        for reward in (0.0, 1.0) * times
    )


def unasked(loaded: Loaded, iterations: int) -> list[RowPlace]:
    """Rows of `hard` that the curriculum asks in none of the first `iterations` iterations."""
    asked = {
        (slot.dataset, slot.index)
        for iteration in range(iterations)
        for slot in loaded.sampler.slots(iteration, 0, SLOTS, "train")
    }
    return [("hard", number) for number in range(500) if ("hard", number) not in asked]


def test_a_plan_looks_at_grades_as_old_as_the_lag(loaded: Loaded, engine: Engine, writer: JournalWriter) -> None:
    rows = unasked(loaded, 10)
    old, new = rows[:SLOTS], rows[SLOTS : 2 * SLOTS]
    grade(writer, loaded, old, iteration=3)
    grade(writer, loaded, new, iteration=4, times=2)
    server = a_server(loaded, engine)
    assert ask(server, 4) == {(slot.dataset, slot.index) for slot in loaded.sampler.slots(4, 0, SLOTS, "train")}
    assert ask(server, 5) == set(old)
    assert ask(server, 6) == set(old)  # fewer grades, so a larger bonus
    grade(writer, loaded, old, iteration=5, times=3)
    assert ask(server, 7) == set(new)


def test_late_grades_change_no_plan(loaded: Loaded, engine: Engine, writer: JournalWriter) -> None:
    rows = unasked(loaded, 10)
    early, late = rows[:SLOTS], rows[SLOTS : 2 * SLOTS]
    grade(writer, loaded, early, iteration=3, times=2)
    server = a_server(loaded, engine)
    assert ask(server, 5) == set(early)
    grade(writer, loaded, late, iteration=1)
    assert ask(server, 5) == ask(a_server(loaded, engine), 5) == set(early)
    assert ask(server, 6) == set(late)


def test_other_grades_do_not_count(loaded: Loaded, engine: Engine, writer: JournalWriter) -> None:
    rows = unasked(loaded, 10)
    grade(writer, loaded, rows[:SLOTS], iteration=0, times=2)
    others: tuple[dict[str, Any], ...] = (
        {"run_id": "other"},
        {"config_id": "other"},
        {"split": "validation"},
        {"status": "error"},
    )
    for number, other in enumerate(others):
        grade(writer, loaded, rows[(number + 1) * SLOTS :][:SLOTS], iteration=0, **other)
    assert ask(a_server(loaded, engine), 2) == set(rows[:SLOTS])
    assert ask(a_server(loaded, engine), 2, "other") == set(rows[SLOTS : 2 * SLOTS])


def test_pages_that_are_asked_at_once_are_of_one_plan(loaded: Loaded, engine: Engine, writer: JournalWriter) -> None:
    grade(writer, loaded, unasked(loaded, 10)[:20], iteration=0)
    server = a_server(loaded, engine)

    async def pages() -> list[int]:
        parts = await asyncio.gather(*(server.slots("run", 3, offset, 2) for offset in range(0, SLOTS, 2)))
        return [slot.index for part in parts for slot in part]

    together = asyncio.run(pages())
    assert len(together) == SLOTS
    assert together == [slot.index for slot in asyncio.run(a_server(loaded, engine).slots("run", 3, 0, SLOTS))]


def test_a_client_that_goes_away_takes_nothing_from_the_others(loaded: Loaded, engine: Engine) -> None:
    server = a_server(loaded, engine)

    async def one_leaves() -> list[int]:
        leaving = asyncio.create_task(server.slots("run", 3, 0, 4))
        staying = asyncio.create_task(server.slots("run", 3, 4, 4))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        return [slot.slot for slot in await staying]

    assert asyncio.run(one_leaves()) == [4, 5, 6, 7]


def test_replicas_that_race_answer_the_same(
    loaded: Loaded, journal: JournalConfig, engine: Engine, writer: JournalWriter
) -> None:
    rows, done = unasked(loaded, 30), Event()

    def grades_come_in() -> None:
        for number in count():
            grade(writer, loaded, [rows[number % len(rows)]], iteration=0)
            if done.is_set():
                return

    other_engine = open_database(journal)
    replicas = [a_server(loaded, engine), a_server(loaded, other_engine)]

    async def race(iteration: int) -> None:
        one, other = await asyncio.gather(*(replica.slots("run", iteration, 0, SLOTS) for replica in replicas))
        assert one == other

    grading = Thread(target=grades_come_in)
    grading.start()
    try:
        for iteration in range(2, 30):
            asyncio.run(race(iteration))
    finally:
        done.set()
        grading.join()
        other_engine.dispose()
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(plans)) == 28


def test_slots_that_are_not_there_are_refused(loaded: Loaded, engine: Engine) -> None:
    with pytest.raises(ConfigError, match="offset 7 \\+ batch_size 2 is more than the 8 prompts"):
        asyncio.run(a_server(loaded, engine).slots("run", 0, 7, 2))


def test_a_journal_that_fails_is_asked_again_the_next_time(loaded: Loaded, engine: Engine) -> None:
    server = a_server(loaded, engine)
    plans.drop(engine)
    with pytest.raises(ServerError, match="the plan of iteration 3 cannot be read"):
        ask(server, 3)
    plans.create(engine)
    assert len(ask(server, 3)) == SLOTS


def test_a_damaged_plan_is_told(loaded: Loaded, engine: Engine) -> None:
    damaged: list[Plan] = [{"rows": []}, {}, {"rows": [["hard", "one", "replay"]] * SLOTS}]
    for iteration, plan in enumerate(damaged):
        PlanStore(engine).store_plan("run", loaded.meta.config_id, iteration, plan)
        with pytest.raises(ServerError, match="a plan is damaged: it does not have the 8 rows of an iteration"):
            ask(a_server(loaded, engine), iteration)
