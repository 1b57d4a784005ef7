"""What adaptive sampling stores: the same for all replicas of a server and after a restart."""

import pytest
from journal_processes import race
from journal_rows import rewarded, row
from sqlalchemy import Engine

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import open_database
from posttrain.dataserver.journal.plans import Plan, PlanStore, RowStatistics
from posttrain.dataserver.journal.writer import JournalWriter


@pytest.fixture
def store(engine: Engine) -> PlanStore:
    """Stores plans in `engine`."""
    return PlanStore(engine)


def test_statistics_are_of_training_rows_with_a_reward_up_to_the_iteration(store: PlanStore, writer: JournalWriter):
    writer.add_durable(rewarded(1.0, 0.5, 0.0, None, request_id="a", iteration=0))
    writer.add_durable(rewarded(1.0, request_id="b", iteration=2))
    writer.add_durable(rewarded(0.25, request_id="c", iteration=1, dataset="words"))
    writer.add_durable(rewarded(1.0, request_id="d", iteration=1, row_key="sums:1", sample_id="sums:1:xyz"))
    for other in ({"split": "validation"}, {"run_id": "other"}, {"config_id": "other"}, {"iteration": 3}):
        writer.add_durable(rewarded(0.125, request_id=str(other), **other))
    assert store.statistics_until("run", "c1", 2) == {
        ("sums", "sums:0"): RowStatistics(count=4, mean=0.625),
        ("sums", "sums:1"): RowStatistics(count=1, mean=1.0),
        ("words", "sums:0"): RowStatistics(count=1, mean=0.25),
    }
    assert store.statistics_until("run", "c1", 0) == {("sums", "sums:0"): RowStatistics(3, 0.5)}
    assert store.statistics_until("run", "c1", -1) == {}


def test_a_row_that_changed_its_content_keeps_its_statistics(store: PlanStore, writer: JournalWriter):
    writer.add_durable([row(0, sample_id="sums:0:abc", reward=0.0), row(1, sample_id="sums:0:def", reward=1.0)])
    assert store.statistics_until("run", "c1", 0) == {("sums", "sums:0"): RowStatistics(2, 0.5)}


def test_the_first_plan_of_an_iteration_stays(store: PlanStore, engine: Engine):
    first, second = {"rows": [3, 1, 2], "from": {"é": None}}, {"rows": []}
    assert store.plan("run", "c1", 5) is None
    assert store.store_plan("run", "c1", 5, first) == first
    assert store.store_plan("run", "c1", 5, second) == first
    assert PlanStore(engine).plan("run", "c1", 5) == first


def test_each_run_config_and_iteration_has_a_plan_of_its_own(store: PlanStore):
    keys = [("run", "c1", 5), ("run", "c1", 6), ("run", "c2", 5), ("", "c1", 5), ("a\0\ud800", "c1", 5)]
    for number, key in enumerate(keys):
        assert store.store_plan(*key, {"number": number}) == {"number": number}
        assert store.plan(*key) == {"number": number}


def _store_plans(config: JournalConfig, process: int) -> list[Plan]:
    engine = open_database(config)
    store = PlanStore(engine)
    plans = [store.store_plan("run", "c1", iteration, {"process": process}) for iteration in range(100)]
    engine.dispose()
    return plans


def test_four_processes_that_race_get_the_same_plans(config: JournalConfig):
    each = race(_store_plans, config)
    assert all(plans == each[0] for plans in each)
