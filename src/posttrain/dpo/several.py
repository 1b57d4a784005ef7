"""Train several models of one config, each in its own process, and compare them in a table."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rich.table import Table

from posttrain.base.console import console, new_table
from posttrain.base.processes import process_count
from posttrain.config.sections.model import model_labels, run_of_model
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.errors import ConfigError, RunError, RunInterrupted
from posttrain.runs.directory import RunDirectory
from posttrain.runs.metrics import read_metrics

_COMMAND = "from posttrain.cli.dpo import main; main()"
# The compared results, and their column titles.
_COLUMNS = {
    "validation_loss": "validation loss",
    "reward_accuracy": "reward accuracy",
    "reward_margin": "reward margin",
    "seconds": "seconds",
}


def train_each(config: DPOConfig, name: str, arguments: Sequence[str], *, dry_run: bool) -> None:
    """Run the command once for each of the config's models; a failure does not stop the rest.

    Args:
        name: the folder that holds the runs.
        arguments: the command's arguments, without `--model-index`.

    Raises:
        ConfigError: this is one of several processes, or every failed model failed because of its input.
        RunError: some models failed for other reasons; the rest are trained.
        RunInterrupted: Ctrl-C or SIGTERM ended it.
    """
    if process_count() > 1:
        raise ConfigError("each of several models is trained in its own processes; choose one with --model-index")
    codes: list[int] = []
    for index, label in enumerate(model_labels(config.models)):
        command = [sys.executable, "-c", _COMMAND, *arguments, "--model-index", str(index)]
        asked: list[int] = []
        codes.append(_run(command, f"model {index} of {len(config.models)}: {label}", asked))
        if asked:
            told = f"stopped at model {index} ({label}); {_way_on(index, arguments)}"
            raise RunInterrupted(told, 128 + asked[0])
    if not dry_run:
        runs = [run_of_model(name, config.models, index) for index in range(len(config.models))]
        console.print(comparison([config.run.output_dir / run for run in runs], codes), soft_wrap=False)
    failed = [label for label, code in zip(model_labels(config.models), codes, strict=True) if code]
    if failed:
        way_on = "" if dry_run else "; use --resume to continue them"
        message = f"{len(failed)} of {len(codes)} models failed: {', '.join(failed)}; see the errors above"
        by_input = all(code in (0, ConfigError.exit_code) for code in codes)
        raise (ConfigError if by_input else RunError)(message + way_on)


def _run(command: Sequence[str], told: str, asked: list[int]) -> int:
    """Run a process and return its exit code; on a signal, append it to `asked` and let the process end cleanly."""

    def remember(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        # Ctrl-C in a terminal reaches both processes anyway.
        if number == signal.SIGTERM and process is not None:
            process.send_signal(number)

    process: subprocess.Popen[bytes] | None = None
    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        console.print(told, highlight=False)
        process = subprocess.Popen(command)
        return process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _way_on(index: int, arguments: Sequence[str]) -> str:
    if "--overwrite" not in arguments:
        return "use --resume to continue"
    return f"continue it with --resume --model-index {index}, and train each later model with --overwrite --model-index"


def comparison(runs: Sequence[Path], codes: Sequence[int]) -> Table:
    """The results of all runs side by side; `codes` are their exit statuses."""
    table = new_table("Models", "model", "steps", *_COLUMNS.values(), words=("steps",))
    for path, code in zip(runs, codes, strict=True):
        run = RunDirectory(path)
        result = {} if code else json.loads(run.result.read_text(encoding="utf-8"))
        steps = str(result["steps"]) if result else f"failed (exit status {code})"
        found = {**result, **_held_out(run, result["exported"])} if result else {}
        table.add_row(path.name, steps, *(_shown(found.get(key)) for key in _COLUMNS))
    return table


def _held_out(run: RunDirectory, exported: str) -> dict[str, float]:
    """Held-out measures of the exported weights, or the last ones before them; empty if there are none."""
    trained = range(1, int(exported.removeprefix("checkpoint-")) + 1)
    evaluations = [row for row in read_metrics(run.metrics) if "eval_loss" in row and row["step"] in trained]
    if not evaluations:
        return {}
    last = {name.removeprefix("eval_"): value for name, value in evaluations[-1].items() if name.startswith("eval_")}
    return {**last, "validation_loss": last["loss"]}


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if value < 100 else f"{value:,.0f}"
