"""Substitutes with adaptive sampling: decided with the plan, from the same grades, and stored with it."""

import asyncio
from pathlib import Path

import pytest
from adaptive_cases import SLOTS, adaptive_config, all_rows, statistics
from sqlalchemy import Engine

from dataserver.journal.journal_rows import row
from posttrain.dataserver.adaptive.planner import Planner
from posttrain.dataserver.adaptive.sampler import AdaptiveSampler
from posttrain.dataserver.data.sampling import Slot
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import open_database
from posttrain.dataserver.journal.plans import Plan, PlanStore, Statistics
from posttrain.dataserver.journal.writer import JournalWriter
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import ConfigError, ServerError

RETIRES = {"pools": {"solved_weight": 0.0, "unsolved_weight": 0.25, "min_grades": 2}, "lag": 1}
SOLVED, UNSOLVED = (1.0, 8), (0.0, 8)


def dealt(loaded: Loaded, iteration: int, known: Statistics) -> list[list[tuple[str, int]]]:
    """For each attempt, the data set and row of every slot's substitute."""
    assert loaded.config.adaptive is not None
    planner = Planner(loaded, loaded.config.adaptive)
    plan = planner.plan(iteration, known)
    substitutes = planner.substitutes(iteration, plan, known)
    return [[(slot.dataset, row) for slot, row in zip(plan, attempt, strict=True)] for attempt in substitutes]


def a_server(loaded: Loaded, engine: Engine) -> AdaptiveSampler:
    assert loaded.config.adaptive is not None
    return AdaptiveSampler(loaded, loaded.config.adaptive, PlanStore(engine))


def ask(sampler: AdaptiveSampler, iteration: int) -> list[list[Slot]]:
    """The substitutes of all attempts, in slot order."""

    async def all_of_them() -> list[list[Slot]]:
        attempts = range(1, 5)
        return [await sampler.substitutes("run", iteration, range(SLOTS), attempt) for attempt in attempts]

    return asyncio.run(all_of_them())


def grade(writer: JournalWriter, loaded: Loaded, rewards: dict[tuple[str, int], float], iteration: int) -> None:
    """Store two completions of each row with that reward."""
    writer.add_durable(
        row(
            1000 * iteration + 2 * place + generation,
            config_id=loaded.meta.config_id,
            dataset=dataset,
            row_key=loaded.datasets[dataset].key(number),
            iteration=iteration,
            reward=reward,
        )
        for place, ((dataset, number), reward) in enumerate(rewards.items())
        for generation in range(2)
    )


def test_a_retired_row_is_no_substitute(tmp_path: Path) -> None:
    # Of 400 and 120 rows half are retired, so 5 · 6 and 5 · 2 others are there.
    loaded = adaptive_config(tmp_path, RETIRES, {"hard": 400, "more": 120})
    retired = {place for name in ("hard", "more") for place in all_rows(loaded, name) if place[1] % 2}
    known = statistics(loaded, dict.fromkeys(retired, SOLVED))
    for iteration in range(1, 20):
        for attempt in dealt(loaded, iteration, known):
            assert not retired & {*attempt}


def test_a_row_that_is_drawn_less_often_comes_less_often(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, RETIRES, {"hard": 1000, "more": 1000}, prompts_per_iteration=64)
    known = statistics(loaded, {place: UNSOLVED for place in all_rows(loaded, "hard") if place[1] < 500})
    rows = [
        number for i in range(1, 9) for attempt in dealt(loaded, i, known) for name, number in attempt if name == "hard"
    ]
    # 48 · 4 · 8 = 1536 substitutes; a fifth come from the half that is kept with probability 1/4: 307 ± 16.
    assert len(rows) == 1536
    assert abs(sum(number < 500 for number in rows) - 307) < 64


def test_where_all_rows_are_retired_one_of_them_is_asked_all_the_same(tmp_path: Path) -> None:
    loaded = adaptive_config(tmp_path, RETIRES)
    known = statistics(loaded, dict.fromkeys([*all_rows(loaded, "hard"), *all_rows(loaded, "more")], SOLVED))
    assert [len(attempt) for attempt in dealt(loaded, 1, known)] == [SLOTS] * 4


def test_late_grades_change_no_substitute_and_replicas_on_one_journal_agree(
    tmp_path: Path, engine: Engine, writer: JournalWriter, journal: JournalConfig
) -> None:
    loaded = adaptive_config(tmp_path, RETIRES, {"hard": 400, "more": 100})
    half = {place: 1.0 for name in ("hard", "more") for place in all_rows(loaded, name) if place[1] % 2}
    grade(writer, loaded, half, iteration=0)
    found = ask(a_server(loaded, engine), 1)
    assert not half.keys() & {(slot.dataset, slot.index) for attempt in found for slot in attempt}
    # These grades also count for iteration 1, but its plan has been made.
    grade(writer, loaded, {(slot.dataset, slot.index): 1.0 for slot in found[0]}, iteration=0)

    other_engine = open_database(journal)
    assert ask(a_server(loaded, other_engine), 1) == found
    other_engine.dispose()
    plan = asyncio.run(a_server(loaded, engine).slots("run", 1, 0, SLOTS))
    assert [[slot.dataset for slot in attempt] for attempt in found] == [[slot.dataset for slot in plan]] * 4
    rows = [(slot.dataset, slot.index) for attempt in (plan, *found) for slot in attempt]
    assert len({*rows}) == 5 * SLOTS


def test_split_requests_get_the_same_substitutes(tmp_path: Path, engine: Engine) -> None:
    loaded = adaptive_config(tmp_path, RETIRES)
    found = ask(a_server(loaded, engine), 3)
    again = a_server(loaded, engine)
    for attempt in (4, 1, 3, 2):
        for slots in ([7], [5, 0], [1, 2, 3]):
            part = asyncio.run(again.substitutes("run", 3, slots, attempt))
            assert part == [found[attempt - 1][slot] for slot in slots]


def test_slots_that_do_not_exist_have_no_substitutes(tmp_path: Path, engine: Engine) -> None:
    server = a_server(adaptive_config(tmp_path, RETIRES), engine)
    with pytest.raises(ConfigError, match="there is no slot 8"):
        asyncio.run(server.substitutes("run", 0, [0, 8], 1))


def test_a_plan_with_damaged_substitutes_is_told(tmp_path: Path, engine: Engine) -> None:
    loaded = adaptive_config(tmp_path, RETIRES)
    rows = [["hard", 0, "curriculum"]] * SLOTS
    damaged: list[Plan] = [{"rows": rows}, {"rows": rows, "substitutes": [[1] * SLOTS] * 3}]
    for iteration, plan in enumerate(damaged):
        PlanStore(engine).store_plan("run", loaded.meta.config_id, iteration, plan)
        with pytest.raises(ServerError, match="4 substitutes of each"):
            ask(a_server(loaded, engine), iteration)
