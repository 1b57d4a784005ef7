"""Check the processor, its cores and who else uses them, the compiler and the accelerator."""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from posttrain.doctor.findings import Asked, Finding, export, fine, unchecked

_BFLOAT16 = ("avx512_bf16", "amx_bf16", "amx_tile", "bf16")
_MUCH_FASTER = 1.5
_HELD_UP = 4.0
"""One thread makes at most this many times as many small sums as all together, unless threads wait for cores."""
_WATCHED_SECONDS = 1.0
_OTHERS_SHARE = 0.2
"""Share of the usable cores from which other processes count."""
DRIVER = Path("/proc/driver/nvidia/version")
_SPIN = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"


def bfloat16(asked: Asked) -> Finding:
    """Whether this processor multiplies matrices of bfloat16 faster than of float32, as measured."""
    if asked.measured.problem:
        return unchecked(asked.measured.problem)
    facts = asked.measured.facts
    seconds = facts["seconds"]
    ratio = seconds["float32"] / seconds["bfloat16"]
    measured = f"bfloat16 multiplies {ratio:.2g} times as fast as float32"
    found = [name for name in _BFLOAT16 if name in facts["capabilities"]]
    if facts["devices"]:
        return fine(f"models compute on the CUDA device; on the CPU {measured}")
    if not found:
        return Finding("slow", f"neither AVX512-BF16 nor AMX: models compute in float32 ({measured})")
    if ratio >= _MUCH_FASTER:
        return fine(f"{', '.join(found)}: {measured}")
    told = f"there is {found[0]}, but {measured}"
    if "ONEDNN_MAX_CPU_ISA" in os.environ:
        return export("slow", f"{told}: ONEDNN_MAX_CPU_ISA forbids it", "unset ONEDNN_MAX_CPU_ISA")
    return Finding("slow", told, advice="measure again when nothing else runs, or set model.dtype: float32")


def compiler(asked: Asked) -> Finding:
    """Whether the C++ compiler that torch.compile uses builds a program with OpenMP and Python's headers."""
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    path = shutil.which(name)
    slower = "layers are not compiled, and training takes up to half as long again"
    if path is None:
        if "CXX" in os.environ:
            return export("slow", f"CXX names {name}, which is not there: {slower}", "unset CXX")
        return Finding("slow", f"there is no {name}: {slower}", "sudo apt-get install -y g++")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "check.cpp")
        source.write_text("#include <Python.h>\n#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n")
        include = sysconfig.get_path("include")
        command = [path, "-fopenmp", f"-I{include}", str(source), "-o", str(Path(folder, "check"))]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0:
        return fine(f"{path} compiles")
    problem = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
    missing = "python3-dev" if "Python.h" in problem else "g++"
    told = f"{path} cannot compile what torch.compile writes ({problem.strip()})"
    return Finding("broken", told, f"sudo apt-get install -y {missing}", "or set training.compile: false")


def threads(asked: Asked) -> Finding:
    """Whether torch has as many threads as there are cores to use, and they do not hold each other up."""
    if asked.measured.problem:
        return unchecked(asked.measured.problem)
    used, cores = asked.measured.facts["threads"], usable_cores()
    whole = max(1, int(cores))
    if used > whole:
        told = f"torch uses {used} threads, but this process may use {cores:g} cores"
        return export("slow", told, f"export OMP_NUM_THREADS={whole}")
    sums = asked.measured.facts["sums_by_threads"]
    ratio = sums["one"] / sums["all"]
    if used > 1 and ratio > _HELD_UP:
        told = f"threads wait for cores: one thread makes {ratio:,.0f} times as many small sums as {used}"
        spinning = [name for name in _SPIN if name in os.environ and name != "GOMP_SPINCOUNT"]
        if spinning:
            return export("slow", f"{told}, as {spinning[0]} has them spin", f"unset {' '.join(spinning)}")
        return export("slow", told, f"export OMP_NUM_THREADS={max(1, used - 1)}")
    if "OMP_NUM_THREADS" in os.environ and used < whole:
        told = f"OMP_NUM_THREADS has torch use {used} of {whole} cores"
        return export("slow", told, "unset OMP_NUM_THREADS")
    return fine(f"{used} threads on {cores:g} usable cores")


def usable_cores(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float:
    """Cores that this process may use: those it may run on, or the quota of its control group if that is less."""
    quotas = list(_quotas(root, groups))
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(affinity), *quotas])


def _quotas(root: Path, groups: Path) -> Iterator[float]:
    """Quotas in cores, of the control group and all groups that it is in (versions 2 and 1)."""
    try:
        paths = [line.split(":", 2)[2].strip("/") for line in groups.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        paths = []
    folders = {
        Path(root, kind, *Path(path).parts[:depth])
        for path in {"", *paths}
        for kind in ("", "cpu")
        for depth in range(len(Path(path).parts) + 1)
    }
    for folder in folders:
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            try:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
            except OSError:
                continue
        if quota.isdigit() and int(quota) > 0:
            yield int(quota) / int(period)


def neighbours(asked: Asked) -> Finding:
    """Whether other processes use the cores that this one may use; watched for a second."""
    if find_spec("psutil") is None:
        return unchecked("needs the package psutil, which comes with the extra train")
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    busy, processes = watch(cores, _WATCHED_SECONDS)
    if busy < _OTHERS_SHARE * len(cores):
        return fine(f"other processes use {busy:.1f} of {len(cores)} cores")
    names = ", ".join(f"{name} {pid} ({share:.0%})" for share, name, pid in processes[:3])
    told = f"other processes use {busy:.1f} of {len(cores)} cores{f': {names}' if names else ', not seen from here'}"
    advice = (
        "let them end, pause them (kill -STOP PID), or give them other cores (taskset -cp CORES PID): torch's threads "
        "wait for each other, and without a core each have slowed training down 60 times"
    )
    active = [name for name in _SPIN if os.environ.get(name, "").lower() in ("active", "infinite", "infinity")]
    if active:
        return Finding(
            "slow", f"{told}; {active[0]} has torch's threads spin", f"unset {shlex.join(active)}", advice, True
        )
    return Finding("slow", told, advice=advice)


def watch(cores: list[int], seconds: float) -> tuple[float, list[tuple[float, str, int]]]:
    """How many of `cores` others use in the next `seconds`, and those processes: share of a core, name and id."""
    import psutil

    def of_cores() -> float:
        each = psutil.cpu_times(percpu=True)
        times = [each[core] for core in cores if core < len(each)]
        return sum(sum(time) - time.idle - getattr(time, "iowait", 0.0) for time in times)

    def of_processes() -> dict[tuple[int, str], float]:
        used = {}
        for process in psutil.process_iter(["pid", "name", "cpu_times"]):
            spent = process.info["cpu_times"]
            if process.pid != os.getpid() and spent is not None:
                used[process.pid, process.info["name"]] = spent.user + spent.system
        return used

    own = time.process_time()
    began, before, processes = time.monotonic(), of_cores(), of_processes()
    time.sleep(seconds)
    after, later = of_cores(), of_processes()
    passed = time.monotonic() - began
    mine = time.process_time() - own
    shares = [((used - processes.get(who, used)) / passed, who[1], who[0]) for who, used in later.items()]
    shares = sorted((each for each in shares if each[0] >= 0.05), reverse=True)
    return max(0.0, (after - before - mine) / passed), shares


def cuda(asked: Asked, driver_file: Path = DRIVER) -> Finding:
    """Whether a CUDA device that is there can be used."""
    driver = driver_version(driver_file)
    facts = asked.measured.facts
    if driver is None and not facts.get("devices"):
        unused = facts.get("unused")
        return fine(f"{f'{unused} is not used: ' if unused else ''}no CUDA device; training is on the CPU")
    if asked.measured.problem:
        return unchecked(asked.measured.problem)
    if not facts["built_for"]:
        again = shlex.join([sys.executable, "-m", "pip", "install", "--force-reinstall", "torch"])
        told = f"there is a CUDA device (driver {driver}), but torch {facts['version']} is built for the CPU"
        return Finding("slow", told, again, "docs/gpu.md has the versions for CUDA")
    if not facts["devices"]:
        told = f"torch is built for CUDA {facts['built_for']}, but finds no device with driver {driver}"
        if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
            return export("broken", f"{told}; CUDA_VISIBLE_DEVICES hides devices", "unset CUDA_VISIBLE_DEVICES")
        return Finding("broken", told, advice="install a driver for that CUDA version, or a torch for that driver")
    names = ", ".join(f"{each['name']} ({each['free'] / 2**30:.0f} GiB free)" for each in facts["devices"])
    return fine(f"{names}; torch is built for CUDA {facts['built_for']}, driver {driver}")


def driver_version(file: Path) -> str | None:
    """The version of NVIDIA's driver in the kernel; None if there is none."""
    try:
        words = file.read_text().split()
    except OSError:
        return None
    return next((word for word in words if word[:1].isdigit() and "." in word), "of unknown version")
