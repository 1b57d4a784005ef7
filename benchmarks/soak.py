"""Trains a tiny model for thousands of steps, kills its engine every 100, and looks for what grows or is left behind.

python benchmarks/soak.py [--steps N] [--every N] [--staleness N] [--folder DIR] [--output FILE]

The rollout engine is a process of its own, one generation ahead. Every 100 steps it is killed, and the trainer starts
it again; with `--every 0` one engine does all steps, which shows its own growth. Prints the resident memory of the
trainer, its engine and its dataserver, how much each grows, and what is left afterwards: processes, temporary files,
and files in shared memory. Exits with code 1 if one of them grows by 1 MB or more in 100 steps, or anything is left.
Run it while nothing else uses shared memory.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import measuring
import numpy as np
import psutil

SHARED_MEMORY = Path("/dev/shm")
LIMIT = 1.0
"""MB in 100 steps."""
WARM_UP = 0.2
"""Share of the steps before growth is judged: caches fill, and the allocator finds its size."""
SECONDS_BETWEEN_LOOKS = 0.05
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
CHARACTERS = ("a-m", "n-z", "A-M", "N-Z", "0-9")
"""A random model writes some of each now and then, so rewards differ."""
ROLES = {"toolkit-rl-train": "trainer", "process.worker": "engine", "local_server_process": "dataserver"}
"""What the command line of each process contains."""


class Sample(NamedTuple):
    """The resident memory of a process, in MB, after some optimizer steps."""

    role: str
    pid: int
    step: int
    megabytes: float


def main() -> None:
    """Train, look, print, write and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps")
    parser.add_argument("--every", type=int, default=100, help="steps between two ends of the engine; 0: none")
    parser.add_argument("--staleness", type=int, default=1, help="generations ahead")
    parser.add_argument("--folder", type=Path, default=None, help="for its files; they are removed if none is given")
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the numbers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        numbers = soak(options, options.folder or Path(name))
    measuring.publish(numbers, report(numbers), options.output)
    if numbers["exit code"] or numbers["left"] or max(numbers["growth"].values()) >= LIMIT:
        raise SystemExit(1)


def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train to the end; what was seen meanwhile, and what is left."""
    import gpu_material

    folder.mkdir(parents=True, exist_ok=True)
    gpu_material.write_model(folder / "model", "tiny")
    rows = ({"prompt": f"Say {WORDS[at % 10]} {WORDS[at // 10 % 10]} {at}."} for at in range(200))
    measuring.write_rows(folder / "prompts.jsonl", rows)
    measuring.write_config(folder / "data.yaml", data_config(options.steps))
    written = measuring.write_config(folder / "soak.yaml", config(options, folder))
    temporary = folder / "temporary"
    temporary.mkdir()
    shared = set(SHARED_MEMORY.glob("*"))
    environment = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
    command = [measuring.command("toolkit-rl-train"), str(written)]
    log = folder / "soak.log"
    with log.open("wb") as said, subprocess.Popen(command, stdout=said, stderr=said, env=environment) as process:
        watched = Watched(process, folder / "runs" / "soak" / "metrics.jsonl", options.every)
        samples = list(watched.samples())
    if process.returncode:
        sys.stderr.write(log.read_text(errors="replace")[-4000:])
    left = [f"process {pid}" for pid in {each.pid for each in samples} if psutil.pid_exists(pid)]
    left += [str(each.relative_to(temporary)) for each in temporary.rglob("*")]
    left += [str(each) for each in set(SHARED_MEMORY.glob("*")) - shared]
    return {
        "exit code": process.returncode,
        "steps": watched.steps,
        "ends": watched.ends,
        "growth": growth(samples, options.steps),
        "left": sorted(left),
        "samples": samples,
    }


def config(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The trainer's config: a step is two groups of four completions."""
    return {
        "model": {"name": str(folder / "model")},
        "lora": {"r": 4},
        "dataserver": {"config": "data.yaml"},
        "algorithm": "dr_grpo",
        "rollout": {
            "generations": 4,
            "max_new_tokens": 8,
            "max_prompt_tokens": 64,
            "staleness": options.staleness,
            "placement": "child",
            "threads": 1,
        },
        "training": {
            "rows_per_step": 8,
            "micro_batch_size": 4,
            "max_steps": options.steps,
            "learning_rate": 1e-4,
            "compile": False,
        },
        "run": {"save_every": 500, "keep_checkpoints": 1},
    }


def data_config(steps: int) -> dict[str, Any]:
    """The dataserver's config: five cheap graders, whose mean differs between completions."""
    graders = {f"has_{name[0]}": {"type": "regex", "pattern": f"(?s).*[{name}].*"} for name in CHARACTERS}
    return {
        "prompts_per_iteration": 2,
        "datasets": {"rows": {"path": "prompts.jsonl", "gold": None, "graders": dict.fromkeys(graders, 1)}},
        "graders": graders,
        "stages": [{"name": "all", "until_step": steps, "mix": {"rows": 1}}],
        "limits": {"workers": 1, "cache_mb": 1},
        "journal": {"path": "journal.sqlite"},
    }


class Watched:
    """A trainer that is looked at until it ends.

    Attributes:
        steps: optimizer steps that it has done.
        ends: after which steps its engine was killed.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", metrics: Path, every: int) -> None:
        self._process, self._metrics, self._every = process, metrics, every
        self.steps = 0
        self.ends: list[int] = []

    def samples(self) -> Iterator[Sample]:
        """The memory of its processes after each step; kills its engine when that is due."""
        while self._process.poll() is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            done = self._metrics.read_bytes().count(b"\n") if self._metrics.is_file() else 0
            if done == self.steps:
                continue
            self.steps = done
            for role, process in family(self._process.pid):
                with suppress(psutil.Error):
                    yield Sample(role, process.pid, done, process.memory_info().rss / 1e6)
                    if role == "engine" and self._every and done // self._every > len(self.ends):
                        process.kill()
                        self.ends.append(done)


def family(trainer: int) -> Iterator[tuple[str, psutil.Process]]:
    """The trainer and its children, with their roles."""
    with suppress(psutil.Error):
        root = psutil.Process(trainer)
        for process in (root, *root.children()):
            with suppress(psutil.Error):
                line = " ".join(process.cmdline())
                role = next((role for part, role in ROLES.items() if part in line), None)
                if role is not None:
                    yield role, process


def growth(samples: Sequence[Sample], steps: int) -> dict[str, float]:
    """MB by which each process grows in 100 steps after the warm-up: the slope of a straight line (least squares).

    Engines that are killed after one another are compared by the most that each of them took.
    """
    judged = [each for each in samples if each.step > WARM_UP * steps]
    lines = {role: [each for each in judged if each.role == role] for role in ROLES.values()}
    lives = [[each for each in lines["engine"] if each.pid == pid] for pid in {each.pid for each in lines["engine"]}]
    if len(lives) > 1:
        lines["engine"] = [max(life, key=lambda each: each.megabytes) for life in lives]
    return {role: slope(line) for role, line in lines.items()}


def slope(line: Sequence[Sample]) -> float:
    """The slope of a line through some samples, in MB per 100 steps; 0 for a single sample."""
    if len({each.step for each in line}) < 2:
        return 0.0
    rises, _ = np.polyfit([each.step for each in line], [each.megabytes for each in line], 1)
    return 100 * float(rises)


def report(numbers: dict[str, Any]) -> str:
    """What was seen, as Markdown."""
    rows = []
    for role in ROLES.values():
        sizes = [Sample(*each).megabytes for each in numbers["samples"] if each[0] == role]
        if sizes:
            at = [sizes[round(share * (len(sizes) - 1))] for share in (WARM_UP, 0.5, 1)]
            rows.append([role, *(f"{size:.1f}" for size in (*at, max(sizes)))])
    head = ["resident MB", f"after {WARM_UP:.0%}", "50%", "100%", "most"]
    lines = [f"- {role}: {value:+.3f} MB in 100 steps" for role, value in numbers["growth"].items()]
    lines.append(f"- {numbers['steps']} steps, {len(numbers['ends'])} engines killed, exit code {numbers['exit code']}")
    lines.append(f"- left behind: {', '.join(numbers['left']) or 'nothing'}")
    return "\n".join([measuring.markdown_table(head, rows), "", *lines])


if __name__ == "__main__":
    main()
