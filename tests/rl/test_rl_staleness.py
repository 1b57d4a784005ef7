"""Runs whose engine works ahead repeat bit for bit, however slow or short-lived their processes are."""

import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from posttrain.errors import ConfigError
from rl.rl_runs import (
    folder_of,
    kill_after,
    lines,
    require_same_runs,
    run,
    said,
    staleness_of,
    started,
    train_here,
    training_rows,
    wait_for_step,
    write_run,
)
from rl.run_processes import engine_of, pausing
from running import metrics

ROLLOUT = {"max_new_tokens": 8}


def write(folder: Path, model: Path, staleness: int, **rollout: object) -> Path:
    return write_run(folder, model, rollout={**ROLLOUT, "staleness": staleness, "threads": 1, **rollout})


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.long)])
def ahead(request: pytest.FixtureRequest, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, left alone, with one or two generations ahead."""
    config = write(tmp_path_factory.mktemp("ahead"), tiny_model, request.param)
    run(config)
    return config


def test_without_staleness_a_child_process_changes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    configs = [write_run(tmp_path / place, tiny_model, rollout={"placement": place}) for place in ("process", "child")]
    for config in configs:
        run(config)
    require_same_runs(configs[0], configs[1])


def test_each_generation_is_as_old_as_the_formula_says(ahead: Path) -> None:
    rows, k = training_rows(metrics(folder_of(ahead))), staleness_of(ahead)
    ages = [row.get("async/age_max", 0.0) for row in rows]
    assert ages == [float(min(step, k)) for step in range(8)]
    assert all(0 < row["sampling/effective_share"] <= 1 for row in rows if row["loss"])


def test_the_prompts_are_asked_in_the_same_order_as_without_staleness(ahead: Path, left_alone: Path) -> None:
    one, other = (training_rows(metrics(folder_of(config))) for config in (ahead, left_alone))
    assert [row["order_hash"] for row in one] == [row["order_hash"] for row in other]


def test_random_pauses_change_nothing(ahead: Path, tiny_model: Path, tmp_path: Path) -> None:
    paused = write(tmp_path, tiny_model, staleness_of(ahead))
    with started(paused) as process, pausing(process.pid, seed=staleness_of(ahead)) as stopped:
        code = process.wait(250)
    assert code == 0, said(paused)
    assert stopped == {"trainer 0", "engine 0", "dataserver 0"}
    require_same_runs(ahead, paused)


def test_a_killed_trainer_goes_on_as_if_nothing_had_happened(ahead: Path, tiny_model: Path, tmp_path: Path) -> None:
    killed = write(tmp_path, tiny_model, staleness_of(ahead))
    kill_after(killed, 5)
    run(killed, "--resume")
    require_same_runs(ahead, killed)


def test_a_killed_engine_is_started_again_and_makes_the_same(ahead: Path, tiny_model: Path, tmp_path: Path) -> None:
    config = write(tmp_path, tiny_model, staleness_of(ahead))
    with started(config) as process:
        wait_for_step(config, 2, process)
        engine = engine_of(process.pid)
        assert engine is not None
        engine.kill()
        code = process.wait(250)
    assert code == 0, said(config)
    assert "start 2 of at most 3" in said(config)
    require_same_runs(ahead, config)


def wait_until_none_is_ready(config: Path) -> None:
    """Return once two seconds have passed without a step: what the engine had sent before is learnt from."""
    file = folder_of(config) / "metrics.jsonl"
    seen, since = file.stat().st_size, time.monotonic()
    while time.monotonic() - since < 2:
        time.sleep(0.1)
        if (now := file.stat().st_size) != seen:
            seen, since = now, time.monotonic()


def test_what_is_not_ready_at_a_stop_is_made_after_the_resume_by_the_weights_that_it_needs(
    ahead: Path, tiny_model: Path, tmp_path: Path
) -> None:
    config = write(tmp_path, tiny_model, staleness_of(ahead))
    with started(config, "--set", "run.save_every=100", "--set", "run.stop_seconds=0") as process:
        wait_for_step(config, 3, process)
        engine = engine_of(process.pid)
        assert engine is not None
        engine.suspend()  # so that the generation in work cannot end
        wait_until_none_is_ready(config)
        process.send_signal(signal.SIGINT)
        code = process.wait(250)
    assert code == 130, said(config)
    checkpoint = max(folder_of(config).glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    assert list((checkpoint / "rollouts").glob("weights-*")), "nothing was left to make again"
    run(config, "--resume")
    assert metrics(folder_of(ahead)) == metrics(folder_of(config))
    assert lines(folder_of(ahead) / "completions.jsonl") == lines(folder_of(config) / "completions.jsonl")


def test_a_run_that_has_ended_cannot_be_lengthened_by_generations_that_need_older_weights(
    tiny_model: Path, tmp_path: Path
) -> None:
    config = write_run(tmp_path, tiny_model, rollout={**ROLLOUT, "staleness": 1, "threads": 1}, evaluation=None)
    train_here(config, ("training.max_steps=2",))
    with pytest.raises(ConfigError, match=r"the run ended at step 2, .*older weights"):
        train_here(config, resume=True)


def test_an_engine_that_cannot_be_kept_alive_ends_the_run_after_a_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    config = write(tmp_path, tiny_model, 1)
    with started(config) as process:
        wait_for_step(config, 2, process)
        while process.poll() is None:
            if (engine := engine_of(process.pid)) is not None:
                with suppress(psutil.Error):
                    engine.kill()
            time.sleep(0.05)
        code = process.wait()
    assert code == 1, said(config)
    assert "3 times in a row" in said(config)
    assert "--resume continues from it" in said(config)
    other = write(tmp_path / "other", tiny_model, 1)
    run(other)
    run(config, "--resume")
    require_same_runs(other, config)
