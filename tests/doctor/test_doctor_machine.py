"""Cores, threads, other processes, the compiler and the device are judged by what is measured."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from posttrain.doctor import machine
from posttrain.doctor.findings import Asked
from posttrain.doctor.probe import Measured

FACTS: dict[str, Any] = {
    "version": "2.13.0+cpu",
    "built_for": None,
    "devices": [],
    "capabilities": ["avx2", "avx512_bf16"],
    "threads": 1,
    "seconds": {"float32": 0.05, "bfloat16": 0.01},
    "sums_by_threads": {"all": 100_000, "one": 100_000},
}
SPINNING = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def asked(**facts: Any) -> Asked:
    return Asked(measure=lambda: Measured(facts={**FACTS, **facts}))


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SPINNING, "ONEDNN_MAX_CPU_ISA", "CUDA_VISIBLE_DEVICES", "CXX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def busy() -> Iterator[list[int]]:
    """Processes that use every core which this one may use, by their ids."""
    code = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(core)]) for core in os.sched_getaffinity(0)]
    time.sleep(0.5)
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


def test_other_processes_on_the_cores_are_named(busy: list[int]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    used, processes = machine.watch(cores, 1.0)
    assert 0.5 * len(cores) < used <= 1.1 * len(cores)
    assert set(busy) <= {pid for _, _, pid in processes}
    found = machine.neighbours(Asked())
    assert found.state == "slow"
    assert f"of {len(cores)} cores" in found.told
    assert found.mend == ""  # other people's processes are not ours to end


def test_spinning_threads_beside_others_are_to_be_stopped(busy: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    found = machine.neighbours(Asked())
    assert (found.mend, found.in_shell) == ("unset OMP_WAIT_POLICY", True)


@pytest.fixture
def one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.usefixtures("one_core")
def test_threads_that_wait_for_cores_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")  # one thread spins on the only core, and the other waits for it
    held_up = Asked()
    assert (held_up.measured.problem, held_up.measured.facts["threads"]) == ("", 2)
    monkeypatch.setattr(machine, "usable_cores", lambda: 2.0)
    found = machine.threads(held_up)
    assert (found.state, found.mend) == ("slow", "unset OMP_WAIT_POLICY")
    assert "threads wait for cores" in found.told


def test_emulated_bfloat16_is_measured_to_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")  # which has no bfloat16
    emulated = Asked()
    assert emulated.measured.facts["seconds"]["bfloat16"] > emulated.measured.facts["seconds"]["float32"]
    assert machine.bfloat16(emulated).state == "slow"


def test_there_are_no_more_threads_than_cores() -> None:
    found = machine.threads(asked(threads=1000))
    assert (found.state, found.mend) == ("slow", f"export OMP_NUM_THREADS={int(machine.usable_cores())}")


@pytest.mark.parametrize(
    ("variable", "mend"), [("OMP_WAIT_POLICY", "unset OMP_WAIT_POLICY"), (None, "export OMP_NUM_THREADS=1")]
)
def test_threads_that_hold_each_other_up_get_fewer_or_stop_spinning(
    variable: str | None, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "ACTIVE")
    monkeypatch.setattr(machine, "usable_cores", lambda: 2.0)
    found = machine.threads(asked(threads=2, sums_by_threads={"all": 64, "one": 108_923}))
    assert (found.state, found.mend) == ("slow", mend)
    assert "1,702 times" in found.told  # 108,923 / 64


@pytest.mark.parametrize(
    ("facts", "environment", "state", "told"),
    [
        ({}, {}, "fine", "5 times"),
        ({"capabilities": ["avx2"]}, {}, "slow", "float32"),
        ({"seconds": {"float32": 0.05, "bfloat16": 0.05}}, {}, "slow", "avx512_bf16"),
        ({"seconds": {"float32": 0.05, "bfloat16": 3.0}}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "slow", "forbids"),
        ({"devices": [{"name": "H"}], "capabilities": []}, {}, "fine", "CUDA"),
    ],
)
def test_bfloat16_is_worth_what_it_measures(
    facts: dict, environment: Mapping[str, str], state: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = machine.bfloat16(asked(**facts))
    assert found.state == state
    assert told in found.told


def test_a_core_that_a_variable_leaves_unused_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 4.0)
    assert machine.threads(asked(threads=4)).state == "fine"
    assert machine.threads(asked(threads=2)).state == "fine"  # torch takes one thread for each physical core
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = machine.threads(asked(threads=3))
    assert (found.state, found.mend) == ("slow", "unset OMP_NUM_THREADS")


@pytest.mark.parametrize(
    ("files", "groups", "cores"),
    [
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, "0::/a/b", 0.5),  # of a group above
        ({"a/cpu.max": "50000 100000"}, "0::/other", None),
        ({"cpu/pod/cpu.cfs_quota_us": "25000", "cpu/pod/cpu.cfs_period_us": "100000"}, "3:cpu:/pod", 0.25),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/", None),
    ],
)
def test_the_quota_of_a_control_group_limits_the_cores(
    files: Mapping[str, str], groups: str, cores: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    (tmp_path / "groups").write_text(f"{groups}\n")
    available = float(len(os.sched_getaffinity(0)))
    assert machine.usable_cores(tmp_path, tmp_path / "groups") == min(available, cores or available)


def test_the_compiler_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.compiler(Asked()).state == ("fine" if shutil.which("g++") else "slow")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert (machine.compiler(Asked()).state, machine.compiler(Asked()).mend) == ("slow", "unset CXX")
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\necho 'check.cpp:1:10: fatal error: Python.h: No such file' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("CXX", str(refusing))
    found = machine.compiler(Asked())
    assert (found.state, found.mend) == ("broken", "sudo apt-get install -y python3-dev")


@pytest.mark.parametrize(
    ("driver", "facts", "hidden", "state"),
    [
        (False, {}, False, "fine"),
        (False, {"unused": "an Apple GPU (MPS)"}, False, "fine"),
        (True, {}, False, "slow"),  # a torch for the CPU
        (True, {"built_for": "13.0"}, False, "broken"),
        (True, {"built_for": "13.0"}, True, "broken"),
        (True, {"built_for": "13.0", "devices": [{"name": "H100", "free": 2**36, "total": 2**36}]}, False, "fine"),
    ],
)
def test_a_cuda_device_needs_a_torch_for_it(
    driver: bool, facts: dict, hidden: bool, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "version"
    if driver:
        file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2025\n")
        assert machine.driver_version(file) == "580.65.06"
    if hidden:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = machine.cuda(asked(**facts), file)
    assert found.state == state
    assert ("580.65.06" in found.told) == driver
    assert ("an Apple GPU (MPS) is not used" in found.told) == ("unused" in facts)
    assert (found.mend == "unset CUDA_VISIBLE_DEVICES") == hidden
