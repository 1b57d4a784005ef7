"""How long a user waits for the help of toolkit-sft, and for its first optimizer step.

python benchmarks/start.py [--rows N] [--times N] [--output FILE]

Compared with `trl sft` on the same model folder, rows, LoRA and step, tuned (bfloat16 weights, no gradient
checkpointing). Both read their files from disk once beforehand. A cold start has an empty cache of tokenised data; the
warm starts follow it. The step is small, so that the start dominates. Prints a Markdown table.
"""

import argparse
import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import measuring
from conversations import problems

RATE = 2e-4
LOSS = re.compile(r"loss\W+\d")


def main() -> None:
    """Measure, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    parser.add_argument("--rows", type=int, default=4, help="rows in the optimizer step")
    parser.add_argument("--data", type=int, default=2000, help="rows of the data set")
    parser.add_argument("--times", type=int, default=3, help="warm starts, of which the median counts")
    options = parser.parse_args()
    if options.short:
        options.rows, options.data, options.times = 4, 20, 1
    numbers: dict[str, Any] = {"help": help_seconds()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = {"toolkit": toolkit_command(options, folder), "TRL": trl_command(options, folder)}
        for side, command in commands.items():
            first_step(command, folder / "reading the disk")
            numbers[side] = {"cold": first_step(command, folder / side)}
        warm: dict[str, list[float]] = {side: [] for side in commands}
        for _ in range(options.times):  # in turns, so that a busy machine slows both alike
            for side, command in commands.items():
                warm[side].append(first_step(command, folder / side))
        for side, seconds in warm.items():
            numbers[side]["warm"] = statistics.median(seconds)
        numbers["dry run"] = dry_run_seconds(commands["toolkit"], folder / "toolkit", options.times)
    measuring.publish(numbers, markdown(numbers), options.output)


def help_seconds() -> float:
    """The median of five runs."""
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([measuring.command("toolkit-sft"), "--help"], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def dry_run_seconds(command: list[str], cache: Path, times: int) -> float:
    """The median of several dry runs, whose data are cached."""
    environment = {**os.environ, "POSTTRAIN_TOOLKIT_CACHE": str(cache)}
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run([*command, "--dry-run"], check=True, capture_output=True, env=environment)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def toolkit_command(options: argparse.Namespace, folder: Path) -> list[str]:
    """The `toolkit-sft` command, with its input files written."""
    rows = measuring.write_rows(folder / "rows.jsonl", problems(options.data))
    config = {
        "model": {"name": measuring.model_folder(options.model), "backend": "hf"},
        "lora": measuring.LORA,
        "datasets": {"rows": {"path": str(rows)}},
        "stages": [{"name": "all", "until_step": 1, "mix": {"rows": 1}}],
        "training": {"rows_per_step": options.rows, "learning_rate": RATE, "schedule": "constant"},
    }
    written = measuring.write_config(folder / "sft.yaml", config)
    return [measuring.command("toolkit-sft"), str(written), "--overwrite"]


def trl_command(options: argparse.Namespace, folder: Path) -> list[str]:
    """The `trl sft` command, with its input files written: prompts and completions, to train only the answers."""
    data = folder / "trl"
    data.mkdir()
    turns = (row["messages"] for row in problems(options.data))
    measuring.write_rows(data / "train.jsonl", ({"prompt": turn[:1], "completion": turn[1:]} for turn in turns))
    config = {
        **measuring.trl_arguments(str(folder / "output"), 1, RATE),
        "model_name_or_path": measuring.model_folder(options.model),
        "dataset_name": str(data),
        "dtype": "bfloat16",
        "bf16": True,
        "gradient_checkpointing": False,
        "per_device_train_batch_size": options.rows,
        "use_peft": True,
        "lora_r": measuring.LORA["r"],
        "lora_alpha": measuring.LORA["alpha"],
        "lora_dropout": 0.0,
        "lora_target_modules": "all-linear",
    }
    written = measuring.write_config(folder / "trl.yaml", config)
    return [
        measuring.command("trl", "TRL newest" if "TRL_PYTHON" in os.environ else "TRL pinned"),
        "sft",
        "--config",
        str(written),
    ]


def first_step(command: list[str], cache: Path) -> float:
    """Seconds until the command prints the loss of its first step; it then runs to its end."""
    caches = {"POSTTRAIN_TOOLKIT_CACHE": str(cache), "HF_DATASETS_CACHE": str(cache)}
    environment = {**os.environ, **caches, "PYTHONUNBUFFERED": "1"}
    said: list[str] = []
    seconds = None
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if seconds is None and LOSS.search(line):
                seconds = time.perf_counter() - began
    if process.returncode or seconds is None:
        raise SystemExit(f"{''.join(said[-40:])}\n{' '.join(command)} failed, see above")
    return seconds


def markdown(numbers: dict[str, Any]) -> str:
    """Seconds of both, and their ratio."""
    rows = [["`toolkit-sft --help`", f"{numbers['help']:.2f}", "", ""]]
    rows.append(["`toolkit-sft --dry-run`", f"{numbers['dry run']:.1f}", "", ""])
    for start in ("cold", "warm"):
        ours, theirs = numbers["toolkit"][start], numbers["TRL"][start]
        rows.append([f"first optimizer step, {start}", f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}"])
    return measuring.markdown_table(["seconds from the command to", "toolkit", "TRL", "×"], rows)


if __name__ == "__main__":
    main()
