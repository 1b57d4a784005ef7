"""Runs that replay groups repeat bit for bit, also after a kill, and leave the curriculum's order as it is."""

from pathlib import Path

import pytest

from rl.replay_runs import AHEAD, RESERVED, events, require_limits, require_same, write
from rl.rl_runs import folder_of, journal, kill_after, run, said, training_rows
from running import metrics


def test_reserved_slots_generate_nothing_and_a_killed_run_replays_the_same(
    left_alone: Path, tiny_model: Path, tmp_path: Path
) -> None:
    whole, killed = (write(tmp_path / name, tiny_model, RESERVED) for name in ("whole", "killed"))
    run(whole)
    kill_after(killed, 5)
    run(killed, "--resume")
    require_same(whole, killed)
    require_limits(whole, max_age=8, max_uses=2, staleness=0)

    rows, plain = training_rows(metrics(folder_of(whole))), training_rows(metrics(folder_of(left_alone)))
    assert [row["order_hash"] for row in rows] == [row["order_hash"] for row in plain]
    displaced = sum(row["replay/displaced"] for row in rows)
    assert displaced > 3
    # Of 8 steps with 2 prompts and 4 completions each; what is replayed is neither made nor graded again.
    assert len(journal(whole)) == 8 * 8 - 4 * displaced
    assert journal(killed) == journal(whole)
    assert "replayed 50%" in said(whole)


@pytest.mark.long
def test_a_killed_run_whose_generations_are_begun_ahead_replays_the_same(
    left_alone: Path, tiny_model: Path, tmp_path: Path
) -> None:
    whole, killed = (write(tmp_path / name, tiny_model, AHEAD) for name in ("whole", "killed"))
    run(whole)
    kill_after(killed, 5)
    assert list(folder_of(killed).glob("checkpoint-4/rollouts/candidates-*.json"))
    run(killed, "--resume")
    require_same(whole, killed)
    assert events(whole, "successes") == events(killed, "successes")
    require_limits(whole, max_age=8, max_uses=1, staleness=1)
    assert {kind for _, kind, *_ in events(whole)} >= {"stored", "held", "used", "released", "evicted"}

    rows, plain = training_rows(metrics(folder_of(whole))), training_rows(metrics(folder_of(left_alone)))
    assert [row["order_hash"] for row in rows] == [row["order_hash"] for row in plain]
    assert any(row["rollouts/groups_asked"] > 2 for row in rows)  # substitutes and spares
    assert any(row["successes/remembered"] for row in rows)


def test_a_run_that_starts_again_from_the_beginning_forgets_what_it_stored(tiny_model: Path, tmp_path: Path) -> None:
    config = write(tmp_path, tiny_model, RESERVED, run={"save_every": 100}, training={"max_steps": 4})
    kill_after(config, 2)
    assert events(config)
    run(config, "--resume")
    other = write(tmp_path / "other", tiny_model, RESERVED, training={"max_steps": 4})
    run(other)
    require_same(config, other)
