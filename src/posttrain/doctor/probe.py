"""Measure with torch, in a process of its own: importing a broken build may end the process.

Run as a script, it prints what it measured as JSON.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

_MOST_SECONDS = 300
_SIDE = 512
"""Rows and columns of the multiplied matrices."""
_SMALL, _AT_ONCE = 2**16, 20
"""Numbers in each of the small sums, and sums between two looks at the clock."""
_ROUNDS = 3


@dataclass(frozen=True)
class Measured:
    """What a process with torch found.

    Attributes:
        problem: why there are no facts; empty if there are.
        facts: what `_facts` returned.
    """

    problem: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


def measured() -> Measured:
    """Measure in a new process, which takes a few seconds."""
    if find_spec("torch") is None:
        return Measured("torch is not installed")
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False, timeout=_MOST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Measured(f"importing torch and measuring took more than {_MOST_SECONDS} seconds")
    if done.returncode < 0:
        return Measured(f"importing torch ends the process with signal {-done.returncode}")
    if done.returncode:
        return Measured(f"torch cannot be imported: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return Measured(facts=json.loads(done.stdout.splitlines()[-1]))


def _facts() -> dict[str, Any]:
    import torch

    from posttrain.models.backend import unused_accelerator

    return {
        "version": torch.__version__,
        "built_for": torch.version.cuda,
        "devices": _devices(),
        "unused": unused_accelerator(torch.accelerator.current_accelerator(check_available=True)),
        "capabilities": [name for name, there in torch.cpu.get_capabilities().items() if there is True],
        "threads": torch.get_num_threads(),
        "seconds": {name: _seconds_of_product(getattr(torch, name)) for name in ("float32", "bfloat16")},
        "sums_by_threads": _sums_by_threads(),
    }


def _devices() -> list[dict[str, Any]]:
    """The CUDA devices on which something can be computed."""
    import torch

    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        torch.ones(2, device=f"cuda:{index}").sum().item()
        free, total = torch.cuda.mem_get_info(index)
        found.append({"name": torch.cuda.get_device_name(index), "free": free, "total": total})
    return found


def _seconds_of_product(dtype: Any) -> float:
    """Seconds of a product of two matrices on the CPU."""
    import torch

    one = torch.ones((_SIDE, _SIDE), dtype=dtype)
    return _shortest(lambda: one @ one)


def _sums_by_threads() -> dict[str, float]:
    """Small sums in a second with one thread, and with all: a thread without a core holds up all others."""
    import torch

    numbers = torch.ones(_SMALL)

    def rate() -> float:
        began, sums = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < 1.0:
            for _ in range(_AT_ONCE):
                numbers.add_(1.0)
            sums += _AT_ONCE
        return sums / passed

    together = rate()
    torch.set_num_threads(1)
    return {"all": together, "one": rate()}


def _shortest(call: Callable[[], object]) -> float:
    call()  # allocates
    seconds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_facts()) + "\n")
