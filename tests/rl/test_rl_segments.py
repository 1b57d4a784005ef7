"""Runs whose completions are made in segments repeat bit for bit."""

from pathlib import Path
from typing import Any

import pytest

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import journal_to_read
from posttrain.dataserver.journal.reader import JournalReader, RowFilter
from rl.rl_runs import (
    STEPS,
    folder_of,
    journal,
    kill_after,
    lines,
    require_same_runs,
    run,
    staleness_of,
    train_here,
    training_rows,
    write_run,
)
from running import metrics

# Completions of at most 8 tokens, in three generations.
ROLLOUT: dict[str, Any] = {"max_new_tokens": 8, "segment_tokens": 3, "threads": 1}


def write(folder: Path, model: Path, staleness: int, **changes: Any) -> Path:
    return write_run(folder, model, rollout={**ROLLOUT, "staleness": staleness}, **changes)


@pytest.fixture(scope="module", params=[pytest.param(0, marks=pytest.mark.long), 1])
def segmented(request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, left alone."""
    config = write(tmp_path_factory.mktemp("segmented"), tiny_model, request.param)
    run(config)
    return config


def test_every_group_is_trained_when_its_last_completion_ends(segmented: Path) -> None:
    rows = training_rows(metrics(folder_of(segmented)))
    sizes = [row["rollouts/whole_groups"] for row in rows]
    assert sum(sizes) <= 2 * STEPS
    assert sum(sizes) >= 2 * (STEPS - 2)  # those of the last two generations may be left unfinished
    assert all(row["async/age_max"] <= staleness_of(segmented) + 2 for row in rows if "async/age_max" in row)
    assert max(row.get("async/age_max", 0) for row in rows) == staleness_of(segmented) + 2
    empty = [row for row in rows if not row["rollouts/whole_groups"]]
    assert empty
    assert all(row["loss"] == 0 and "warnings" not in row for row in empty)
    graded = [row for row in journal(segmented) if row[0] == "train"]
    assert len(graded) == 4 * sum(sizes)


TOLD = """\
def told(completions, options):
    with open(options["to"], "a") as file:
        print(completions[0]["iteration"], completions[0]["prompt"], file=file)
"""


def test_a_filter_gets_the_iteration_that_asked_the_group(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TOLD)
    file = tmp_path / "told"
    own = {"kind": "python", "path": f"{tmp_path}/own.py:told", "options": {"to": str(file)}}
    rollout = {**ROLLOUT, "filters": [own]}
    config = write_run(tmp_path, tiny_model, rollout=rollout, training={"max_steps": 4}, evaluation=None)
    train_here(config)
    with journal_to_read(JournalConfig(path=config.with_name("journal.sqlite"))) as engine:
        graded = {f"{row.iteration} {row.prompt}" for row in JournalReader(engine).rows(RowFilter(split="train"))}
    example, *told = file.read_text().splitlines()
    assert "1 + 1" in example
    assert {*told} == graded
    assert any(row["rollouts/carried_share"] for row in training_rows(metrics(folder_of(config))))


def test_the_prompts_are_asked_in_the_same_order_as_without_segments(
    segmented: Path, tiny_model: Path, tmp_path: Path
) -> None:
    whole = write_run(tmp_path, tiny_model, rollout={"max_new_tokens": 8})
    run(whole)
    one, other = (training_rows(metrics(folder_of(config))) for config in (segmented, whole))
    assert [row["order_hash"] for row in one] == [row["order_hash"] for row in other]


def test_a_killed_run_goes_on_with_the_completions_that_it_had_begun(
    segmented: Path, tiny_model: Path, tmp_path: Path
) -> None:
    killed = write(tmp_path, tiny_model, staleness_of(segmented))
    kill_after(killed, 5)
    run(killed, "--resume")
    require_same_runs(segmented, killed)


@pytest.mark.long
@pytest.mark.parametrize("staleness", [0, 1])
def test_two_processes_share_the_groups_and_go_on_after_a_kill(
    staleness: int, tiny_model: Path, tmp_path: Path, left_alone: Path
) -> None:
    changes = {"training": {"micro_batch_size": 1, "max_steps": 6}, "evaluation": None}
    left, killed = (write(tmp_path / name, tiny_model, staleness, **changes) for name in ("left", "killed"))
    run(left, processes=2)
    kill_after(killed, 3, processes=2)
    run(killed, "--resume", processes=2)
    segmented, plain = (training_rows(metrics(folder_of(config))) for config in (left, left_alone))
    assert [row["order_hash"] for row in segmented] == [row["order_hash"] for row in plain[:6]]
    assert metrics(folder_of(left)) == metrics(folder_of(killed))
    assert lines(folder_of(left) / "completions.jsonl") == lines(folder_of(killed) / "completions.jsonl")


def test_segments_of_the_likeliest_tokens_make_the_same_completions_as_one_generation(
    tiny_model: Path, tmp_path: Path
) -> None:
    nearly = {"temperature": 1e-4, "importance_correction": "none"}  # the likeliest token always
    still = {"training": {"learning_rate": 1e-12}, "lora": {"dropout": 0.0}}
    segmented = write_run(tmp_path / "segmented", tiny_model, rollout={**ROLLOUT, **nearly}, **still)
    whole = write_run(tmp_path / "whole", tiny_model, rollout={**nearly, "max_new_tokens": 8}, **still)
    for config in (segmented, whole):
        run(config)
    made = [{row[4]: row[5] for row in journal(config) if row[0] == "train"} for config in (segmented, whole)]
    assert made[0].keys() < made[1].keys()
    assert len(made[0]) > 4
    assert all(made[1][name] == text for name, text in made[0].items())
    # Some of them took several generations.
    assert any(row["rollouts/carried_share"] for row in training_rows(metrics(folder_of(segmented))))
