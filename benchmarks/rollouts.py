"""Seconds per optimizer step of GRPO with rollouts ahead of training, compared with what its parts allow and with TRL.

python benchmarks/rollouts.py [--engine hf|vllm] [--cycles N] [--completions N] [--tokens N] [--times N] [--output FILE]

Measures k = 0, 1 and 2 generations ahead with a grader that answers at once, where generation takes about as long as
learning, and with one that waits for as long as both together, as a remote judge does. Trainer and engine have either
half of the cores each, or all of them each. Layers are not compiled. The runs take turns.

Seconds per step are means over whole cycles, since long and short steps take turns if generations are made ahead; the
first steps and the last are left out. With the times of the same run, no arrangement of its parts can be faster than
max(sync + learn, load + generate, (learn + load + generate + grade) / (k + 1)), the ideal. `load` is what else the
engine does: it takes over weights and proves that it uses them, while the trainer computes what to expect. Each run is
also compared with its busiest part: trainer, engine, or the judge while it works on at least one generation. With k = 2
and a slow grader, a step should take at most 1.15 times as long as that part is busy. With k = 1 no arrangement could:
the two generations under way are graded at almost the same time, so the ideal is 1.33 times the busiest part. TRL's
synchronous trainer has the same prompts and lengths. Its asynchronous trainer is only constructed, to tell whether it
runs here. Prints Markdown tables.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpo
import judge
import measuring

WARM_UP, CYCLE = 3, 6
"""Optimizer steps at the start that are left out, and those of a cycle, a multiple of k + 1 for each k. The last k
steps, when the engine has nothing more to do, are left out too."""
TRL_STEPS = 3
"""Of which the first is left out."""
SIZES = {"hf": (16, 8), "vllm": (16, 48)}
"""For each engine, completions and tokens with which generation takes about as long as learning."""
SHOWN = (
    "ideal",
    "of_ideal",
    "of_busiest",
    "sync",
    "learn",
    "load",
    "generate",
    "grade",
    "judge_busy",
    "wait",
    "engine_idle",
    "tokens",
)


@dataclass(frozen=True)
class Case:
    """How the toolkit trains.

    Attributes:
        staleness: generations ahead.
        slow: whether the grader takes as long as generation and learning together.
        half: whether trainer and engine use half of the cores each, rather than all of them each.
    """

    staleness: int
    slow: bool
    half: bool

    def words(self) -> str:
        """The run's name."""
        grader, cores = "slow grader" if self.slow else "fast grader", "half" if self.half else "all"
        return f"{grader}, k = {self.staleness}, {cores} cores"


CALIBRATION = Case(0, slow=False, half=True)
JUDGED = tuple(Case(staleness, slow=True, half=True) for staleness in (1, 2))
"""The cases that must come close to the ideal, and with k = 2 to their busiest part."""
AHEAD = ((1, True), (1, False), (2, True))
"""Generations ahead, and whether trainer and engine have half of the cores each."""
CASES = [Case(staleness, slow, half) for slow in (False, True) for staleness, half in ((0, False), *AHEAD)]
BY_WORDS = {case.words(): case for case in (CALIBRATION, *CASES)}


def main() -> None:
    """Measure each case, print and write."""
    options = read_options()
    if options.run:
        found = train(options, BY_WORDS[options.run]) if options.run in BY_WORDS else RIVALS[options.run](options)
        measuring.tell(found)
        return
    first = measuring.in_a_process(CALIBRATION.words())
    slow = ("--grade-seconds", f"{sum(first[part] for part in ('sync', 'learn', 'generate')):.3f}")
    cases = [case.words() for case in (JUDGED if options.short else CASES)]
    once = [] if options.short else [TRL_ASYNC, TRL_FAST, TRL_SLOW]
    numbers = measuring.in_rounds(cases, once, *slow, times=options.times)
    numbers["once"][CALIBRATION.words()] = first
    measuring.publish(numbers, markdown(numbers), options.output)


def read_options() -> argparse.Namespace:
    """The options on the command line."""
    parser = measuring.benchmark_parser(__doc__)
    measuring.rounds_option(parser)
    parser.set_defaults(times=2)
    parser.add_argument("--engine", choices=SIZES, default="hf", help="generates the completions")
    parser.add_argument("--cycles", type=int, default=1, help=f"measured cycles of {CYCLE} optimizer steps each")
    parser.add_argument("--completions", type=int, default=None, help="completions in one optimizer step")
    parser.add_argument("--tokens", type=int, default=None, help="longest completion")
    parser.add_argument("--grade-seconds", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.short:
        options.times, options.completions, options.tokens = 1, 16, 8
    completions, tokens = SIZES[options.engine]
    options.completions, options.tokens = options.completions or completions, options.tokens or tokens
    return options


def train(options: argparse.Namespace, case: Case) -> dict[str, float]:
    """What the toolkit takes, from its metrics.jsonl, a clock and the judge's own record."""
    from posttrain.runs.metrics import read_metrics

    seconds = options.grade_seconds if case.slow else 0.0
    with tempfile.TemporaryDirectory() as name, judge.judging(seconds) as running:
        folder = Path(name)
        measuring.write_rows(folder / "prompts.jsonl", ({"prompt": prompt} for prompt in grpo.prompts()))
        measuring.write_config(folder / "data.yaml", data_config(options, running.url))
        written = measuring.write_config(folder / "rollouts.yaml", config(options, case))
        metrics = folder / "runs" / "rollouts" / "metrics.jsonl"
        ends = ends_of_steps(written, metrics, half=case.half)
        return figures(read_metrics(metrics), ends, running.calls, case.staleness)


def config(options: argparse.Namespace, case: Case) -> dict[str, Any]:
    """The trainer's config: that of the benchmark of GRPO, but without compiled layers."""
    options.steps = WARM_UP + CYCLE * options.cycles + case.staleness
    found = grpo.config(options, options.engine)
    found["training"]["compile"] = False
    found["rollout"] |= {"staleness": case.staleness, "threads": half_of_the_cores() if case.half else os.cpu_count()}
    return found


def data_config(options: argparse.Namespace, url: str) -> dict[str, Any]:
    """The dataserver's config: the judge grades a generation in one call."""
    found = grpo.data_config(options)
    found["graders"] = {"judge": {"type": "http", "url": url, "batch_size": 10_000, "timeout_seconds": 600}}
    found["datasets"]["stories"]["graders"] = {"judge": 1}
    return found


def half_of_the_cores() -> int:
    """Threads for the trainer, and as many for the engine; one each on two cores."""
    return max(1, (os.cpu_count() or 1) // 2)


def ends_of_steps(config: Path, metrics: Path, *, half: bool) -> list[float]:
    """Run the trainer; for each optimizer step the reading of `time.perf_counter` at its line of metrics.jsonl."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if half:
        environment["OMP_NUM_THREADS"] = str(half_of_the_cores())
    ends: list[float] = []
    command = [measuring.command("toolkit-rl-train"), config]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as process:
        while process.poll() is None:
            time.sleep(0.01)
            lines = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
            ends += [time.perf_counter()] * (lines - len(ends))
    if process.returncode:
        raise SystemExit(process.returncode)
    return ends


def figures(
    steps: Sequence[dict[str, Any]], ends: Sequence[float], calls: Sequence[judge.Call], staleness: int
) -> dict[str, float]:
    """Means per step over the measured cycles.

    Args:
        steps: lines of metrics.jsonl.
        ends: when each step ended.
        calls: of the judge.
    """
    first, last = WARM_UP, len(steps) - staleness
    seconds = [step["seconds"] for step in steps[first:last]]
    found = {part: statistics.fmean(each[part] for each in seconds) for part in seconds[0]}
    begin, end = ends[first - 1], ends[last - 1]
    found["all"] = (end - begin) / len(seconds)
    found["load"] = max(0.0, found["all"] - found["engine_idle"] - found["generate"])
    found["ideal"] = ideal_seconds(found, staleness)
    found["judge_busy"] = judge.busy_seconds(calls, begin, end) / len(seconds)
    busiest = max(found["sync"] + found["learn"], found["load"] + found["generate"], found["judge_busy"])
    return {
        **found,
        "of_ideal": found["all"] / found["ideal"],
        "of_busiest": found["all"] / busiest,
        "tokens": statistics.fmean(step["completion_tokens"] for step in steps),
    }


def ideal_seconds(parts: dict[str, float], staleness: int) -> float:
    """The shortest step that is possible with these seconds of trainer, engine and grader.

    A generation is made once the one k + 1 before it is trained. So k + 1 of them are under way at once, and each is
    made, graded and trained in turn. The engine loads weights while the trainer is still busy with `sync`.
    """
    trainer, engine = parts["sync"] + parts["learn"], parts["load"] + parts["generate"]
    return max(trainer, engine, (parts["learn"] + engine + parts["grade"]) / (staleness + 1))


def train_with_trl(options: argparse.Namespace) -> dict[str, float]:
    """TRL's synchronous trainer, as a user would run it, with a reward function that waits for the grader."""
    from trl import GRPOTrainer

    lengths: list[float] = []
    waited = options.grade_seconds if options.run == TRL_SLOW else 0.0

    def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
        lengths.extend(len(ids) for ids in completion_ids)
        time.sleep(waited)
        return [judge.score(each[0]["content"]) for each in completions]

    options.steps = TRL_STEPS
    with tempfile.TemporaryDirectory() as output:
        trainer = GRPOTrainer(reward_funcs=reward, **grpo.trl_parts(options, output))
        seconds = measuring.seconds_of_steps(trainer)
        trainer.train()
    return {"all": statistics.fmean(seconds[1:]), "tokens": statistics.fmean(lengths)}


def start_async_trl(options: argparse.Namespace) -> dict[str, str]:
    """What TRL's asynchronous trainer says when it is constructed for a CPU; it is not given an engine."""
    import trl
    from datasets import Dataset
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

    def reward(completions: list[Any], **_: Any) -> list[float]:
        return [judge.score(each[0]["content"]) for each in completions]

    prompts = [[{"role": "user", "content": each}] for each in grpo.prompts()]
    with tempfile.TemporaryDirectory() as output:
        try:
            AsyncGRPOTrainer(
                model=measuring.model_folder(options.model),
                reward_funcs=reward,
                args=AsyncGRPOConfig(**measuring.trl_arguments(output, 1, grpo.RATE)),
                train_dataset=Dataset.from_dict({"prompt": prompts}),
            )
        except Exception as error:  # noqa: BLE001  # whatever it is, it is what a user would see
            return {"version": trl.__version__, "error": f"{type(error).__name__}: {error}"}
    return {"version": trl.__version__, "error": ""}


TRL_FAST, TRL_SLOW, TRL_ASYNC = "TRL, tuned, fast grader", "TRL, tuned, slow grader", "TRL, asynchronous"
RIVALS = {TRL_FAST: train_with_trl, TRL_SLOW: train_with_trl, TRL_ASYNC: start_async_trl}


def markdown(numbers: dict[str, Any]) -> str:
    """Where the time of each run goes; what staleness gains; whether TRL's asynchronous trainer starts."""
    found = measuring.by_run(numbers)
    started = found.pop(TRL_ASYNC, [])
    parts = [times_table(found), *([] if len(found) < len(CASES) else [gains(found)])]
    for each in started:
        outcome = f"ends with {each['error']}" if each["error"] else "starts; it is not measured"
        parts.append(f"TRL {each['version']}, AsyncGRPOTrainer: {outcome}")
    return "\n\n".join(parts)


def times_table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Seconds of each run, medians of the rounds."""
    rows = []
    for run, rounds in found.items():
        shown = {name: f"{statistics.median(each[name] for each in rounds):.2f}" for name in rounds[0]}
        cells = [shown.get(name, "") for name in SHOWN]
        rows.append([run, measuring.spread([each["all"] for each in rounds], 2), *cells])
    head = ["rollouts", "s per step", "ideal", "× ideal", "× busiest part"]
    head += [name.replace("_", " ") for name in SHOWN[3:]]
    return measuring.markdown_table(head, rows)


def gains(found: dict[str, list[dict[str, Any]]]) -> str:
    """How many times as fast as k = 0 with all cores each case is, and how many cores to give each side."""

    def seconds(case: Case) -> float:
        return statistics.median(each["all"] for each in found[case.words()])

    before = {slow: seconds(Case(0, slow, half=False)) for slow in (False, True)}
    rows = [
        [f"k = {staleness}, {'half of the' if half else 'all'} cores each"]
        + [f"{before[slow] / seconds(Case(staleness, slow, half)):.2f}" for slow in (False, True)]
        for staleness, half in AHEAD
    ]
    faster = {
        slow: "half of the cores" if seconds(Case(1, slow, half=True)) < seconds(Case(1, slow, half=False)) else "all"
        for slow in (False, True)
    }
    table = measuring.markdown_table(["times as fast as k = 0", "fast grader", "slow grader"], rows)
    return f"{table}\n\nFaster with k = 1: {faster[False]} each (fast grader), {faster[True]} each (slow grader)"


if __name__ == "__main__":
    main()
