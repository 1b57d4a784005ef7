"""No two commands train in one folder, and a dead command locks nobody out."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from dpo.dpo_runs import write_run as write_dpo_run
from posttrain.base.locks import holder_of, process_lock
from posttrain.config.load import load_config
from posttrain.errors import ConfigError
from rl.rl_runs import folder_of, server_pid, started, wait_for_step
from rl.rl_runs import write_run as write_rl_run
from running import BIN
from sft.small_sft import train_sft, write_sft_run

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_command_is_refused_at_once_and_leaves_the_first_one_undisturbed(tmp_path: Path, tiny_model: Path):
    config = write_sft_run(tmp_path, tiny_model)
    run = tmp_path / "runs" / "sft"
    first = subprocess.Popen([BIN / "toolkit-sft", config], stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        while first.poll() is None and not (run / "metrics.jsonl").is_file():
            time.sleep(0.01)
        first.send_signal(signal.SIGSTOP)
        assert first.poll() is None, "the run ended before it could be stopped"
        before = contents(run)
        for option in ([], ["--resume"], ["--overwrite"]):
            command = [BIN / "toolkit-sft", config, *option]
            second = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
            assert second.returncode == 2
            last = second.stderr.splitlines()[-1]
            assert last.startswith(f"error: {run} is being trained by process {first.pid} on ")
            assert second.stderr.count("error:") == 1 and "Traceback" not in second.stderr
        assert contents(run) == before
        first.send_signal(signal.SIGCONT)
        assert first.wait(240) == 0
    finally:
        first.kill()
        first.wait()
    assert (run / "result.json").is_file()
    assert not (run / ".lock").exists()


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}], ids=["start", "resume", "overwrite"])
@pytest.mark.parametrize("kind", ["sft", "dpo", "rl"])
def test_every_trainer_is_refused_before_it_reads_anything(
    kind: str, options: dict[str, bool], tmp_path: Path, tiny_model: Path
):
    from posttrain.dpo.config.dpo import DPOConfig
    from posttrain.dpo.train import train as train_dpo
    from posttrain.rl.config import RLConfig
    from posttrain.rl.train import train as train_rl

    write = {"sft": write_sft_run, "dpo": write_dpo_run, "rl": write_rl_run}[kind]
    config = write(tmp_path, tiny_model)
    for data in tmp_path.glob("*.jsonl"):
        data.unlink()
    with process_lock(tmp_path / "runs" / "mine" / ".lock"), pytest.raises(ConfigError, match="is being trained by"):
        if kind == "sft":
            train_sft(config, "mine", **options)
        elif kind == "dpo":
            train_dpo(load_config(config, DPOConfig), "mine", **options)
        else:
            train_rl(load_config(config, RLConfig), "mine", **options)
    assert not (tmp_path / "runs").exists()


def test_a_dataserver_that_outlives_its_trainer_does_not_keep_the_run_locked(tmp_path: Path, tiny_model: Path):
    config = write_rl_run(tmp_path, tiny_model)
    lock = folder_of(config) / ".lock"
    with started(config) as process:
        wait_for_step(config, 1, process)
        found = holder_of(lock)
        assert found is not None and found.pid == process.pid
        server = psutil.Process(server_pid(config))
        server.suspend()  # so that it cannot notice that its trainer is gone
        try:
            process.kill()
            process.wait()
            assert server.status() == psutil.STATUS_STOPPED
            assert lock.is_file() and holder_of(lock) is None
        finally:
            server.resume()
            server.wait(30)


def test_a_run_that_fails_before_it_begins_leaves_no_folder(tmp_path: Path, tiny_model: Path):
    from posttrain.errors import DataError

    config = write_sft_run(tmp_path, tiny_model)
    (tmp_path / "a.jsonl").write_text("no record\n")
    with pytest.raises(DataError):
        train_sft(config, "mine")
    assert not (tmp_path / "runs").exists()
