"""Whether rollouts ahead of training, or substitutes, harm what is learned: the word problems of docs/grpo.md.

python benchmarks/learning.py [--folder DIR] [--seeds N ...] [--steps N] [--jobs N] [--time] [--report] [--output FILE]

Trains the recorded run at staleness 0, 1 and 2, and at 0 with substitutes for groups of equal rewards, with every
seed; and once, as a control, with rewards shuffled among the completions of a step. All start from the same fine-tuned
adapter and have the same prompts; the seed is that of the completions. A run that is there or in FILE is not repeated,
and one that was interrupted continues, so that the hours that all of it takes can be spread. Each process has one
thread, and --jobs runs are made at once.

Compared are the rewards of greedy answers to the held-out problems after the last step: for each problem the mean
difference to staleness 0 over the seeds, and the 95 % interval of its mean over the problems; a seed counts where both
runs began with the same bits, which another kind of CPU may not give. That interval is of these seeds alone: "by seed"
has the difference of each, and half of the interval of their mean by Student's t. "Steps to" is the first evaluation at
which the mean over the seeds reaches 80 % of what staleness 0 gains; "minutes to" is that many times the seconds per
step of --time: short runs of the same settings, to be made while the machine does nothing else.
Prints a Markdown table; with --report, of the runs that are finished. Exits with 1 if an interval lies below 0.
"""

import argparse
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import measuring

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "word_problems"
START, CONTROL = "start", "shuffled"
BASE = "staleness 0"
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {"staleness": 0},
    "staleness 1": {"staleness": 1},
    "staleness 2": {"staleness": 2},
    "substitutes": {"staleness": 0, "rejected": "substitute", "filters": [{"kind": "reward_spread"}]},
}
SHARE_OF_GAIN = 0.8
TIMED, UNTIMED = 6, 4
"""Optimizer steps whose seconds are measured, and those before them."""
SECONDS_TO_START = 120.0


def main() -> None:
    """Train what is missing, compare, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"), help="where the runs are, and stay")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="seeds of the completions")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps of each run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--time", action="store_true", help="measure seconds per step, and nothing else")
    parser.add_argument("--report", action="store_true", help="train nothing")
    options = parser.parse_args()
    if options.short:
        options.seeds, options.steps = [1], 2
    options.folder.mkdir(parents=True, exist_ok=True)
    known = json.loads(options.output.read_text()) if options.output and options.output.is_file() else {}
    runs, seconds = known.get("runs", {}), known.get("seconds per step", {})
    if options.time:
        fine_tune(options)
        seconds = {name: seconds_per_step(options, name) for name in VARIANTS}
    elif not options.report:
        train_all(options, runs)
    numbers = {name: {**runs.get(name, {}), **runs_of(options, name)} for name in [*VARIANTS, CONTROL]}
    measuring.publish({"runs": numbers, "seconds per step": seconds}, markdown(numbers, seconds), options.output)
    if any(high < 0 for name, runs in numbers.items() if name in VARIANTS for *_, high in [compared(numbers, runs)]):
        sys.exit(1)


def train_all(options: argparse.Namespace, known: dict[str, Any]) -> None:
    """Every run that is neither finished nor `known`, seed by seed, and the control after the first seed."""
    fine_tune(options)
    wanted = [(name, seed) for seed in options.seeds for name in VARIANTS]
    wanted.insert(len(VARIANTS), (CONTROL, options.seeds[0]))
    missing = [(name, seed) for name, seed in wanted if str(seed) not in known.get(name, {})]
    with ThreadPoolExecutor(options.jobs) as jobs:
        for made in [jobs.submit(make, options, *each) for each in missing]:
            made.result()


def make(options: argparse.Namespace, name: str, seed: int) -> None:
    """One run of a variant or of the control."""
    if is_finished(options.folder / run_name(name, seed)):
        return
    config = served(options, name, seed)
    if name != CONTROL:
        return train(options, name, seed, {"rollout": VARIANTS[name], "dataserver": {"config": str(config)}})
    with shuffled_rewards(config) as url:
        train(options, name, seed, {"rollout": VARIANTS[BASE], "dataserver": {"url": url}})


def fine_tune(options: argparse.Namespace) -> None:
    """The adapter that all runs start from."""
    steps = 2 if options.short else 40
    settings = {
        "model.name": options.model,
        "training.max_steps": steps,
        "training.warmup_steps": min(5, steps - 1),
        "run.output_dir": options.folder.resolve(),
    }
    toolkit(options, "toolkit-sft", EXAMPLE / "sft.yaml", START, *(f"{key}={value}" for key, value in settings.items()))


def seconds_per_step(options: argparse.Namespace, name: str) -> float:
    """The mean over the last steps of a short run of a variant, which is not kept."""
    from posttrain.runs.metrics import read_metrics

    before = 1 if options.short else UNTIMED
    with tempfile.TemporaryDirectory() as folder:
        (start := Path(folder) / START).symlink_to((options.folder / START).resolve())
        short = argparse.Namespace(**{**vars(options), "folder": start.parent, "steps": before + TIMED})
        config = served(short, name, options.seeds[0])
        settings = {"rollout": VARIANTS[name], "dataserver": {"config": str(config)}, "evaluation": None}
        train(short, name, options.seeds[0], settings)
        rows = read_metrics(start.parent / run_name(name, options.seeds[0]) / "metrics.jsonl")
    return statistics.fmean(row["seconds"]["all"] for row in rows if row["step"] > before)


def train(options: argparse.Namespace, name: str, seed: int, settings: dict[str, Any]) -> None:
    """One run of a variant."""
    every = 1 if options.short else 10
    config = {
        "model": {"name": options.model, "adapter": str(options.folder.resolve() / START)},
        "chat": {"max_length": 256},
        "algorithm": "dr_grpo",
        "evaluation": {"every": every, "max_new_tokens": 40, **({"prompts": 4} if options.short else {})},
        "training": {
            "rows_per_step": 64,
            "micro_batch_size": 16,
            "max_steps": options.steps,
            "learning_rate": 1e-4,
            "warmup_steps": min(3, options.steps - 1),
            "seed": seed,
        },
        "run": {"output_dir": str(options.folder.resolve()), "save_every": every},
        **settings,
    }
    config["rollout"] = {"generations": 8, "max_new_tokens": 40, "batch_size": 64, "threads": 1, **settings["rollout"]}
    file = measuring.write_config(options.folder / f"{run_name(name, seed)}.yaml", config)
    toolkit(options, "toolkit-rl-train", file, run_name(name, seed))


def toolkit(options: argparse.Namespace, program: str, config: Path, name: str, *overrides: str) -> None:
    """Run a command, continue an interrupted run, or do nothing if it is finished."""
    run = options.folder / name
    if is_finished(run):
        return
    command = [measuring.command(program), str(config), "--run-name", name]
    command += [part for each in overrides for part in ("--set", each)]
    command += ["--resume"] if run.is_dir() else []
    began = time.perf_counter()
    with run.with_name(f"{name}.log").open("a") as log:
        done = subprocess.run(command, env=one_thread(), stdout=log, stderr=subprocess.STDOUT)
    if done.returncode:
        raise SystemExit(f"learning: {name} failed, see {run.with_name(f'{name}.log')}")
    sys.stderr.write(f"learning: {name}: {time.perf_counter() - began:.0f} s\n")


def one_thread() -> dict[str, str]:
    """The environment of a process that has one thread for its numbers."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def served(options: argparse.Namespace, name: str, seed: int) -> Path:
    """The config of a run's dataserver: the example's, with a journal beside the run."""
    import yaml

    config = yaml.safe_load((EXAMPLE / "rl_data.yaml").read_text())
    config["data_root"] = str(EXAMPLE)
    run = options.folder.resolve() / run_name(name, seed)
    config["journal"]["path"] = str(run.with_suffix(".journal.sqlite"))
    return measuring.write_config(run.with_suffix(".data.yaml"), config)


@contextmanager
def shuffled_rewards(config: Path) -> Iterator[str]:
    """The URL of a dataserver that shuffles the rewards of each request, see examples/word_problems."""
    ports = free_ports()
    server, proxy = (f"http://127.0.0.1:{port}" for port in ports)
    commands = [
        [measuring.command("toolkit-rl-dataserver"), str(config), "--port", str(ports[0])],
        [sys.executable, str(EXAMPLE / "shuffled_rewards.py"), server, str(ports[1])],
    ]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    try:
        for port in ports:
            wait_for(port)
        yield proxy
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def free_ports() -> list[int]:
    """Two ports on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return [each.getsockname()[1] for each in (one, other)]


def wait_for(port: int) -> None:
    """Wait until something listens on a port."""
    deadline = time.monotonic() + SECONDS_TO_START
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise SystemExit(f"learning: nothing listens on port {port}") from None
            time.sleep(0.2)


def run_name(name: str, seed: int) -> str:
    """The folder of a run."""
    return f"{name.replace(' ', '_')}-{seed}"


def is_finished(run: Path) -> bool:
    """Whether a run has ended."""
    return (run / "result.json").is_file()


def runs_of(options: argparse.Namespace, name: str) -> dict[str, dict[str, Any]]:
    """By seed: what it started from, held-out rewards by step and per prompt at the end, and groups asked for."""
    from posttrain.runs.metrics import read_metrics
    from posttrain.train.evaluate import EVALUATIONS, evaluation_file

    found = {}
    for seed in options.seeds[:1] if name == CONTROL else options.seeds:
        run = options.folder / run_name(name, seed)
        if not is_finished(run):
            continue
        rows = read_metrics(run / "metrics.jsonl")
        lines = evaluation_file(run / EVALUATIONS, options.steps).read_text().splitlines()
        found[str(seed)] = {
            "start": hashlib.sha256(trained_adapter(options).read_bytes()).hexdigest(),
            "held out": {str(row["step"]): row["eval_reward"] for row in rows if "eval_reward" in row},
            "prompts": {row["sample_id"]: row["reward"] for row in map(json.loads, lines)},
            "groups": sum(row.get("rollouts/groups_asked", 8.0) for row in rows if "seconds" in row),
        }
    return found


def trained_adapter(options: argparse.Namespace) -> Path:
    """The weights of the adapter that all runs start from."""
    return options.folder / START / "adapter_model.safetensors"


def compared(numbers: dict[str, Any], runs: dict[str, Any]) -> tuple[float, float, float]:
    """Mean difference to staleness 0 with its 95 % interval, over prompts; of the seeds that can be compared."""
    from posttrain.base.intervals.paired import difference_interval

    base, seeds = numbers[BASE], alike(numbers, runs)
    if not seeds:
        return 0.0, -1.0, 1.0
    differences = [
        statistics.fmean(runs[seed]["prompts"][name] - base[seed]["prompts"][name] for seed in seeds)
        for name in base[seeds[0]]["prompts"]
    ]
    low, high, _ = difference_interval(differences)
    return statistics.fmean(differences), low, high


def alike(numbers: dict[str, Any], runs: dict[str, Any]) -> list[str]:
    """The seeds that can be compared with those of staleness 0: both runs began with the same bits."""
    base = numbers[BASE]
    return [seed for seed in runs if seed in base and base[seed]["start"] == runs[seed]["start"]]


def by_seed(numbers: dict[str, Any], runs: dict[str, Any]) -> str:
    """The difference to staleness 0 of each seed, and half of the 95 % interval of their mean by Student's t."""
    from posttrain.base.intervals.student import half_width

    last = [
        statistics.fmean(runs[seed]["prompts"].values()) - statistics.fmean(numbers[BASE][seed]["prompts"].values())
        for seed in alike(numbers, runs)
    ]
    half = half_width(last)
    told = ", ".join(f"{each:+.1%}" for each in last)
    return told if half is None else f"{told} (± {half:.1%})"


def mean_curve(runs: dict[str, Any]) -> dict[int, float]:
    """Held-out reward by step, mean over the seeds."""
    steps = next(iter(runs.values()))["held out"]
    return {int(step): statistics.fmean(each["held out"][step] for each in runs.values()) for step in steps}


def markdown(numbers: dict[str, Any], seconds: dict[str, float]) -> str:
    """The curves, the differences, and how long it takes to most of the gain; `seconds` per step, of some variants."""
    there = {name: runs for name, runs in numbers.items() if runs}
    if BASE not in there:
        return "no run of staleness 0 is finished"
    base = mean_curve(there[BASE])
    start, end = base[min(base)], base[max(base)]
    level = start + SHARE_OF_GAIN * (end - start)
    head = [
        "",
        "seeds",
        *(f"step {step}" for step in base),
        "difference, 95 % interval",
        "by seed",
        f"steps to {level:.1%}",
        "minutes to it",
    ]
    return measuring.markdown_table(head, [line(numbers, name, level, seconds.get(name)) for name in there])


def line(numbers: dict[str, Any], name: str, level: float, seconds: float | None) -> list[str]:
    """A variant's line of the table; `seconds` per step, if they are known."""
    runs = numbers[name]
    curve = mean_curve(runs)
    reached = next((step for step, reward in curve.items() if reward >= level), None)
    minutes = "" if reached is None or seconds is None else f"{reached * seconds / 60:.1f}"
    mean, low, high = compared(numbers, runs)
    difference = "" if name == BASE else f"{mean:+.1%} ({low:+.1%} to {high:+.1%})"
    return [
        name,
        str(len(runs)),
        *(f"{reward:.1%}" for reward in curve.values()),
        difference,
        "" if name == BASE else by_seed(numbers, runs),
        "never" if reached is None else str(reached),
        minutes,
    ]


if __name__ == "__main__":
    main()
