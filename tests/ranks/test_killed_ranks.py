"""Killing one process ends the run with one message, and the run resumes from its last checkpoint as if nothing had
happened."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from dataserver.serving import still_running
from ranks.rank_runs import (
    TRAINERS,
    Trainer,
    alone,
    folder_of,
    newest_checkpoint,
    ranks_of,
    run,
    said,
    started,
    steps_of,
    wait_for_step,
)
from running import metrics

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Callable[[Trainer], Path]:
    """`left_alone(trainer)` is the config of an undisturbed run with two processes."""
    made: dict[str, Path] = {}

    def make(trainer: Trainer) -> Path:
        if trainer.command not in made:
            config = trainer.write(tmp_path_factory.mktemp("left_alone"), tiny_model, "run")
            run(trainer.command, config)
            made[trainer.command] = config
        return made[trainer.command]

    return make


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
def test_a_killed_rank_ends_the_run_in_one_message_and_it_goes_on_bit_for_bit(
    trainer: Trainer, victim: int, left_alone: Callable[[Trainer], Path], tmp_path: Path, tiny_model: Path
) -> None:
    config = trainer.write(tmp_path, tiny_model, "run")
    with started(trainer.command, config) as launcher:
        wait_for_step(config, trainer.kill_at, launcher)
        ranks = ranks_of(launcher)
        assert ranks.keys() == {0, 1}
        ranks[victim].kill()
        assert launcher.wait(100) == 1
        assert still_running(list(ranks.values()), 20) == []

    survivor = said(config, 1 - victim)
    saved = newest_checkpoint(folder_of(config))
    assert survivor.splitlines()[-1] == (
        "error: another of this run's 2 processes ended: it was killed, or its own output says why; --resume, with 2 "
        f"processes again, continues from {saved.name}, which is complete"
    )
    assert survivor.count("error: ") == 1
    assert "Traceback" not in survivor

    run(trainer.command, config, "--resume")
    assert f"resuming {folder_of(config)} from step {saved.name.removeprefix('checkpoint-')}" in said(config, 0)
    mine, undisturbed = folder_of(config), folder_of(left_alone(trainer))
    assert metrics(mine) == metrics(undisturbed)
    last = newest_checkpoint(undisturbed).name
    for file in ("adapter_model.safetensors", f"{last}/optimizer.pt", f"{last}/adapter_model.safetensors"):
        assert (mine / file).read_bytes() == (undisturbed / file).read_bytes(), file


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "sft"), (signal.SIGTERM, "sft"), (signal.SIGINT, "grpo")])
def test_a_signal_to_the_launch_ends_all_ranks_after_the_same_step_which_is_saved(
    number: signal.Signals, name: str, left_alone: Callable[[Trainer], Path], tmp_path: Path, tiny_model: Path
) -> None:
    trainer = TRAINERS[name]
    config = trainer.write(tmp_path, tiny_model, "run")
    with started(trainer.command, config) as launcher:
        wait_for_step(config, trainer.kill_at, launcher)
        ranks = ranks_of(launcher)
        launcher.send_signal(number)
        assert launcher.wait(100) != 0
        assert still_running(list(ranks.values()), 20) == []

    folder = folder_of(config)
    saved = newest_checkpoint(folder)
    for rank in (0, 1):
        assert "Traceback" not in said(config, rank)
    assert said(config, 0).splitlines()[-1] == (
        f"stopped after step {steps_of(folder)[-1]['step']}, which is saved in {saved}; --resume continues from it"
    )
    run(trainer.command, config, "--resume")
    assert metrics(folder) == metrics(folder_of(left_alone(trainer)))


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
def test_of_two_processes_only_the_main_one_speaks(trainer: Trainer, left_alone: Callable[[Trainer], Path]) -> None:
    config = left_alone(trainer)
    assert f"run directory: {folder_of(config)}\n" in said(config, 0)
    assert "is exported to" in said(config, 0)
    ours = [
        line for line in said(config, 1).splitlines() if not line.startswith("[Gloo] Rank 1 is connected to 1 peer")
    ]
    assert ours == []


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
def test_a_run_of_two_processes_is_not_gone_on_with_by_one(
    trainer: Trainer, left_alone: Callable[[Trainer], Path]
) -> None:
    config = left_alone(trainer)
    before = {path: path.read_bytes() for path in folder_of(config).rglob("*") if path.is_file()}
    (folder_of(config) / "result.json").unlink()  # as if it had not ended
    try:
        told = alone(trainer.command, config, "--resume", expect=2).stderr
    finally:
        (folder_of(config) / "result.json").write_bytes(before[folder_of(config) / "result.json"])
    assert "this would not be the same run, so it is not resumed; what changed:\n  processes: 2 → 1\n" in told
    assert {path: path.read_bytes() for path in folder_of(config).rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("trainer", TRAINERS.values(), ids=TRAINERS)
def test_a_run_of_one_process_is_not_gone_on_with_by_two(trainer: Trainer, tmp_path: Path, tiny_model: Path) -> None:
    config = trainer.write(tmp_path, tiny_model, "run")
    alone(trainer.command, config, "--set", "training.max_steps=4")
    trained = steps_of(folder_of(config))
    run(trainer.command, config, "--resume", expect=1)  # torchrun's own exit code, whatever the processes return
    told = "this would not be the same run, so it is not resumed; what changed:\n  processes: 1 → 2\n"
    assert told in said(config, 0)
    assert steps_of(folder_of(config)) == trained
