"""What the benchmarks share: runs in separate processes, clocks, TRL's settings, and tables."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import rivals

MODEL = "smollm2-135m-instruct"
LORA: dict[str, Any] = {"r": 16, "alpha": 32, "target_modules": "all-linear"}
# So that modules are compiled once and not at each start, as on most machines.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
WARM_UP = 2
"""Optimizer steps left out of a median: the first ones allocate memory."""
COMPILED_STEPS = 10
"""Optimizer steps of a rival with `torch_compile`, which compiles again for most widths at first."""
LONGEST_COMPILED = 240.0
"""Seconds after which it ends, with the steps it has done."""


def benchmark_parser(docstring: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has; the first line of `docstring` describes the benchmark."""
    parser = argparse.ArgumentParser(description=(docstring or "").partition("\n")[0])
    parser.add_argument("--model", default=MODEL, help="a packaged model or a folder, where one is needed")
    parser.add_argument("--short", action="store_true", help="check the results on little data; the times mean nothing")
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the numbers")
    parser.add_argument("--run", default=None, help=argparse.SUPPRESS)
    return parser


def rounds_option(parser: argparse.ArgumentParser) -> None:
    """Add `--times`, for benchmarks whose runs take turns."""
    parser.add_argument("--times", type=int, default=2, help="rounds, of which the medians count")


def in_processes(runs: Iterable[str], *more: str) -> dict[str, Any]:
    """The numbers of each run, one after the other, each in its own process."""
    return {run: in_a_process(run, *more) for run in runs}


def in_rounds(measured: Iterable[str], checked: Iterable[str] = (), *more: str, times: int) -> dict[str, Any]:
    """The numbers of the `measured` runs, round by round, and of the `checked` runs.

    Each round has every measured run once, so that a busy minute of the machine affects all of them. Runs that are
    only `checked` for their results run once. `more`: options for all of them.
    """
    names = list(measured)
    return {"once": in_processes(checked, *more), "rounds": [in_processes(names, *more) for _ in range(times)]}


def whole_rounds(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    """Each round, merged with what ran once; a part without rounds is a single round."""
    if "rounds" not in numbers:
        return [numbers]
    return [numbers["once"] | each for each in numbers["rounds"] or [{}]]


def by_run(numbers: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The figures of each run of `in_rounds`, round by round."""
    found = {run: [figures] for run, figures in numbers["once"].items()}
    for each in numbers["rounds"]:
        for run, figures in each.items():
            found.setdefault(run, []).append(figures)
    return found


def spread(values: Sequence[float], digits: int = 0) -> str:
    """The median of several values, with the lowest and the highest."""
    low, middle, high = (f"{value:.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low}-{high})"


def in_a_process(run: str, *more: str, script: Path | None = None, longest: float | None = None) -> Any:
    """The numbers of one run: this same command, or `script`, started with `--run` and the options in `more`.

    Raises:
        SystemExit: it failed.
        TimeoutExpired: it took more than `longest` seconds.
    """
    started = sys.argv if script is None else [str(script)]
    command = [python_of(run), *started, "--run", run, *more]
    environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error"}
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=longest)
    if done.returncode:
        raise SystemExit(f"{done.stderr[-4000:]}\n{Path(started[0]).stem}: the run {run!r} failed, see above")
    sys.stderr.write(f"{Path(started[0]).stem}: {run}: {time.perf_counter() - began:.0f} s\n")
    return json.loads(done.stdout.splitlines()[-1])


def tell(numbers: Any) -> None:
    """In a run's process: hand its numbers to the process that started it."""
    sys.stdout.write(json.dumps(numbers) + "\n")


def publish(numbers: Any, markdown: str, output: Path | None) -> None:
    """Print the table, and write the numbers if there is an output file."""
    sys.stdout.write(markdown + "\n")
    if output is not None:
        output.write_text(json.dumps(numbers, indent=1) + "\n")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def python_of(run: str) -> str:
    """The interpreter of a run: this one, or for a rival's newest version that of an environment of its own.

    `make bench` creates that environment and puts its interpreter in TRL_PYTHON.

    Raises:
        SystemExit: TRL_PYTHON is not set.
    """
    if not rivals.is_newest(run):
        return sys.executable
    if "TRL_PYTHON" not in os.environ:
        raise SystemExit(
            f"{run}: TRL_PYTHON must name the interpreter of an environment with the newest TRL, such as "
            ".venv/versions/newest/bin/python after python checks/versions.py newest"
        )
    return os.environ["TRL_PYTHON"]


def command(name: str, run: str = "toolkit") -> str:
    """A program in the Python environment of a run."""
    return str(Path(python_of(run)).with_name(name))


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    """Write a JSONL file, and return its path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_config(path: Path, config: dict[str, Any]) -> Path:
    """Write a config file, and return its path; JSON is YAML too."""
    path.write_text(json.dumps(config, indent=1))
    return path


def model_folder(name: str) -> str:
    """The folder of a model, as plain transformers can load it."""
    from posttrain.config.sections.model import ModelConfig
    from posttrain.models.hf import model_files

    return model_files(ModelConfig(name=name))


def adapted_model(settings: Any, dtype: str) -> Any:
    """The base in `dtype` with PEFT's own LoRA, with the same shape and initialisation as the toolkit's.

    `settings` is the toolkit's config.
    """
    import torch
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model_folder(settings.model.name), dtype=dtype)
    torch.manual_seed(settings.training.seed)
    return get_peft_model(base, peft_lora())


def peft_lora() -> Any:
    """The adapter's config, as a PEFT user would write it."""
    from peft import LoraConfig

    shape = {"r": LORA["r"], "lora_alpha": LORA["alpha"], "target_modules": LORA["target_modules"]}
    return LoraConfig(**shape, task_type="CAUSAL_LM")


def trl_arguments(output: str, steps: int, learning_rate: float, run: str | None = None) -> dict[str, Any]:
    """Arguments for every TRL trainer: train as the toolkit does, and write no files or progress bars.

    `run` is the name of its run, by which its model is compiled or not.
    """
    return {
        **({"torch_compile": True} if is_compiled(run) else {}),
        "output_dir": output,
        "use_cpu": True,
        "max_steps": steps,
        "learning_rate": learning_rate,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def is_compiled(run: str | None) -> bool:
    """Whether a run is that of a rival with `torch_compile`."""
    return run is not None and run.endswith(", compiled")


def seconds_of_steps(trainer: Any, run: str | None = None) -> list[float]:
    """A list that training fills with the seconds of each optimizer step.

    If the name of its run says that it is compiled, training ends after the step in which its time is over.
    """
    from transformers import TrainerCallback

    seconds: list[float] = []

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, *arguments: Any, **keywords: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            seconds.append(time.perf_counter() - self.began)
            control.should_training_stop |= is_compiled(run) and sum(seconds) > LONGEST_COMPILED

    trainer.add_callback(Clock())
    return seconds


def losses_of(trainer: Any) -> list[float]:
    """The loss of each optimizer step."""
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def median_after_warm_up(values: Sequence[float]) -> float:
    """The median over the steps after the warm-up, which always leaves at least the last one."""
    return statistics.median(values[min(WARM_UP, len(values) - 1) :])


def biggest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """The biggest difference between the losses of two runs, step by step."""
    return max(abs(here - there) for here, there in zip(one, other, strict=True))
