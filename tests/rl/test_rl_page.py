"""What a run reports is what the dataserver's page and the run's plots show."""

from pathlib import Path
from typing import Any

import pytest

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import journal_to_read
from posttrain.dataserver.journal.reader import JournalReader, RowFilter
from posttrain.dataserver.journal.steps import StepSummaries
from posttrain.dataserver.web.dashboard import dashboard
from rl.rl_runs import STEPS, folder_of, train_here, training_rows, write_run
from running import metrics


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


def test_each_completion_knows_which_steps_trained_it_again(tiny_model: Path, tmp_path: Path) -> None:
    rollout = {"replay": {"share": 0.5, "fill": "reserved", "max_uses": 3}}
    config = write_run(tmp_path, tiny_model, rollout=rollout, evaluation=None)
    train_here(config)
    with journal_to_read(JournalConfig(path=config.with_name("journal.sqlite"))) as engine:
        rows = list(JournalReader(engine).rows(RowFilter(split="train")))
        uses = [use for row in rows for use in StepSummaries(engine).uses_of(row)]
    assert [(row.iteration + 1, "fresh") for row in rows] == [(u.step, u.origin) for u in uses if u.origin == "fresh"]
    # Two groups of four completions each are trained in a step.
    again = [use.step for use in uses if use.origin == "replayed"]
    shares = {row["step"]: row["rollouts/replayed_share"] for row in training_rows(metrics(folder_of(config)))}
    assert again
    assert {step: again.count(step) for step in shares} == {step: 8 * share for step, share in shares.items()}


def test_ages_shares_filters_and_waits_are_plotted(trained: Path) -> None:
    plots = {path.stem for path in (folder_of(trained) / "plots").iterdir()}
    assert {"age", "effective_share", "accepted", "rejected", "waits"} <= plots


def require_the_same_rewards(config: Path) -> None:
    """Assert that the page has the rewards of metrics.jsonl; every completion of these runs has one."""
    with journal_to_read(JournalConfig(path=config.with_name("journal.sqlite"))) as engine:
        cells = dashboard(engine, None, None).steps
    for row in training_rows(metrics(folder_of(config))):
        own = [each for each in cells if each.iteration == row["step"]]
        for shown, logged in (("asked", "reward"), ("trained", "trained_reward")):
            pairs = [(getattr(each, shown), getattr(each, f"{shown}_reward")) for each in own]
            groups = sum(count for count, _ in pairs)
            total = sum(count * mean for count, mean in pairs if count)
            assert (total / groups if groups else None) == pytest.approx(row[logged]), (row["step"], shown)


def test_groups_that_are_trained_though_rejected_count_as_trained(trained: Path) -> None:
    assert any(row["rollouts/accepted_share"] < 1 for row in training_rows(metrics(folder_of(trained))))
    require_the_same_rewards(trained)


@pytest.mark.parametrize("rejected", ["drop", "substitute"])
def test_the_page_has_the_rewards_of_what_was_asked_and_trained(
    tiny_model: Path, tmp_path: Path, rejected: str
) -> None:
    rollout: dict[str, Any] = {"filters": [{"kind": "mean_reward", "max": 0.5}], "rejected": rejected}
    if rejected == "substitute":
        rollout |= {"over_sampling": 2, "attempts": 1}
    config = write_run(tmp_path, tiny_model, rollout=rollout, evaluation=None)
    train_here(config)
    rows = training_rows(metrics(folder_of(config)))
    assert any(row["reward"] != row["trained_reward"] for row in rows)
    if rejected == "substitute":
        assert any(row["rollouts/groups_unused"] for row in rows)
        assert any(row["rollouts/accepted_share"] < 1 for row in rows)
    require_the_same_rewards(config)
