"""What a run reports is what the dataserver's page and the run's plots show."""

from pathlib import Path

import pytest

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import journal_to_read
from posttrain.dataserver.journal.reader import JournalReader, RowFilter
from posttrain.dataserver.web.dashboard import dashboard
from rl.rl_runs import STEPS, folder_of, train_here, write_run


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that generates one generation ahead, and counts groups with equal rewards and long ones."""
    filters = [{"kind": "reward_spread"}, {"kind": "length", "max_tokens": 4, "of": "any"}]
    rollout = {"staleness": 1, "threads": 1, "filters": filters}
    config = write_run(tmp_path_factory.mktemp("page"), tiny_model, rollout=rollout, evaluation=None)
    train_here(config)
    return config


def test_each_number_that_the_page_draws_is_reported(trained: Path) -> None:
    with journal_to_read(JournalConfig(path=trained.with_name("journal.sqlite"))) as engine:
        page = dashboard(engine, None, None)
    assert page.last_step == STEPS
    assert {
        "async/age_mean",
        "async/age_max",
        "sampling/effective_share",
        "rollouts/replayed_share",
        "seconds/wait",
        "seconds/engine_idle",
        "filters/length",
    } <= {each.name for each in page.numbers}
    assert {each.verdict.partition(":")[0] for each in page.verdicts} <= {"", "reward_spread", "length"}
    assert sum(each.asked for each in page.steps) == 2 * STEPS


def test_each_completion_in_the_journal_knows_its_weights_and_where_it_came_from(trained: Path) -> None:
    with journal_to_read(JournalConfig(path=trained.with_name("journal.sqlite"))) as engine:
        rows = list(JournalReader(engine).rows(RowFilter(split="train")))
    assert {(row.iteration, row.lowest_version, row.highest_version, row.origin) for row in rows} == {
        (step, max(0, step - 1), max(0, step - 1), "fresh") for step in range(STEPS)
    }


def test_ages_shares_filters_and_waits_are_plotted(trained: Path) -> None:
    plots = {path.stem for path in (folder_of(trained) / "plots").iterdir()}
    assert {"age", "effective_share", "accepted", "rejected", "waits"} <= plots
