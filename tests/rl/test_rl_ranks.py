"""Two processes train on the same prompts as one, and if one process fails, both stop."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dataserver.serving import serving, still_running
from rl.rl_runs import (
    folder_of,
    journal,
    kill_after,
    lines,
    refusing,
    run,
    said,
    started,
    training_rows,
    wait_for_step,
    write_run,
)
from running import metrics

# A step is two groups of 4 completions; each process trains one group, in four micro-batches.
CHANGES: dict[str, Any] = {
    "training": {"micro_batch_size": 1, "max_steps": 4},
    "evaluation": {"prompts": 5},
}


class Refused:
    """What the proxy currently refuses: completions of rank 1 at `iteration`, or nothing."""

    iteration: int | None = None

    def __call__(self, path: str, body: dict[str, Any]) -> bool:
        return path == "/grade" and body["iteration"] == self.iteration and "/1.0-" in body["request_id"]


@pytest.fixture(scope="module")
def refused() -> Refused:
    return Refused()


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, refused: Refused) -> Iterator[dict[str, Any]]:
    """Config sections for runs that share one server."""
    config = write_run(tmp_path_factory.mktemp("server"), tiny_model)
    with serving(config.with_name("data.yaml")) as server, refusing(server.url, refused) as url:
        yield {**CHANGES, "dataserver": {"config": None, "url": url, "retry_seconds": 0.5}}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The config of a completed run on two processes, with its own dataserver."""
    config = write_run(tmp_path_factory.mktemp("two_ranks"), tiny_model, **CHANGES, run={"save_every": 1})
    run(config, processes=2)
    return config


def test_two_processes_ask_the_same_prompts_in_the_same_steps_as_one(left_alone: Path, two_ranks: Path) -> None:
    one, two = (training_rows(metrics(folder_of(config))) for config in (left_alone, two_ranks))
    assert [row["order_hash"] for row in two] == [row["order_hash"] for row in one[:4]]
    assert [row["stage"] for row in two] == ["one"] * 4

    def asked(config: Path) -> list[tuple[Any, ...]]:
        return sorted(row[1:3] + row[4:5] for row in journal(config) if row[0] == "train" and row[1] < 4)

    # Every group is complete, whichever process sampled it: each iteration, slot and sample id appears 4 times.
    assert asked(two_ranks) == asked(left_alone)
    assert len(asked(two_ranks)) == 4 * 2 * 4


def test_two_processes_share_an_evaluation_whose_prompts_they_cannot_halve(left_alone: Path, two_ranks: Path) -> None:
    answers = lines(folder_of(two_ranks) / "evaluations" / "step-000004.jsonl")
    alone = lines(folder_of(left_alone) / "evaluations" / "step-000004.jsonl")
    # Five prompts with two samples each: every answer once, in slot order.
    assert [answer["sample_id"] for answer in answers] == [answer["sample_id"] for answer in alone[:10]]
    requests = {row[3:5] for row in journal(two_ranks) if row[:2] == ("validation", 4)}
    assert len(requests) == 10


def test_only_the_main_process_speaks(two_ranks: Path) -> None:
    assert said(two_ranks).count("held-out prompts, first evaluation against last") == 1
    assert said(two_ranks).count("run directory: ") == 1


def test_a_rank_that_is_killed_or_cannot_be_graded_ends_the_run_which_goes_on_bit_for_bit(
    tmp_path: Path, tiny_model: Path, changes: dict[str, Any], refused: Refused, two_ranks: Path
) -> None:
    config = write_run(tmp_path, tiny_model, **changes)
    with started(config, processes=2, forked=False) as launcher:
        wait_for_step(config, 2, launcher)
        ranks = {each.environ()["RANK"]: each for each in psutil.Process(launcher.pid).children()}
        assert ranks.keys() == {"0", "1"}
        ranks["1"].kill()
        assert launcher.wait(100) == 1
        assert still_running(list(ranks.values()), 20) == []

    # After the resume, both processes train step 3 as before; then only rank 1 gets no rewards.
    refused.iteration = 3
    run(config, "--resume", processes=2, expect=1)

    assert "error: stopped after step 3, which is saved; --resume continues from it: no valid answer" in said(config)
    assert "which is saved; --resume continues from it: process 1: no valid answer" in said(config)
    undisturbed = folder_of(two_ranks)
    assert training_rows(metrics(folder_of(config))) == training_rows(metrics(undisturbed))[:3]
    saved, wanted = (folder / "checkpoint-3" for folder in (folder_of(config), undisturbed))
    for file in ("adapter_model.safetensors", "optimizer.pt"):
        assert (saved / file).read_bytes() == (wanted / file).read_bytes()


AHEAD: dict[str, Any] = {
    "filters": [{"kind": "mean_reward", "max": 0.5}],
    "rejected": "substitute",
    "over_sampling": 1.5,
    "staleness": 1,
    "threads": 1,
}


def write_ahead(folder: Path, model: Path, **rollout: Any) -> Path:
    changes = {"rollout": {**AHEAD, **rollout}, "training": {"micro_batch_size": 1, "max_steps": 4}}
    return write_run(folder, model, **changes, evaluation=None, run={"save_every": 1})


@pytest.fixture(scope="module")
def two_ahead(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by two processes ahead of their model, which recorded its rollouts."""
    config = write_ahead(tmp_path_factory.mktemp("two_ahead"), tiny_model, record=True)
    run(config, processes=2)
    rows = training_rows(metrics(folder_of(config)))
    assert any(row["rollouts/substituted_share"] for row in rows)
    assert [row.get("async/age_max", 0.0) for row in rows] == [0.0, 1.0, 1.0, 1.0]
    return config


def require_same_steps(one: Path, other: Path) -> None:
    assert metrics(folder_of(one)) == metrics(folder_of(other))
    assert lines(folder_of(one) / "completions.jsonl") == lines(folder_of(other) / "completions.jsonl")


def test_two_processes_ahead_of_their_model_ask_the_same_prompts_as_a_plain_run(
    two_ahead: Path, left_alone: Path
) -> None:
    ahead, plain = (training_rows(metrics(folder_of(config))) for config in (two_ahead, left_alone))
    assert [row["order_hash"] for row in ahead] == [row["order_hash"] for row in plain[:4]]


@pytest.mark.long
def test_two_processes_ahead_of_their_model_replace_the_same_groups_and_go_on_after_a_kill(
    two_ahead: Path, tmp_path: Path, tiny_model: Path
) -> None:
    killed = write_ahead(tmp_path, tiny_model)
    kill_after(killed, 2, processes=2)
    run(killed, "--resume", processes=2)
    require_same_steps(killed, two_ahead)


def test_two_processes_train_on_recorded_rollouts_with_their_substitutes(
    two_ahead: Path, tmp_path: Path, tiny_model: Path
) -> None:
    config = write_ahead(tmp_path, tiny_model)
    run(config, "--rollouts-from", str(folder_of(two_ahead)), processes=2)
    require_same_steps(config, two_ahead)
