"""End a run: export the model, draw plots, and write the results."""

import json
import re
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posttrain.base.console import console
from posttrain.base.files import atomic_writer
from posttrain.errors import RunError
from posttrain.runs.checkpoints import Checkpoint, best_checkpoint, latest_checkpoint
from posttrain.runs.directory import RunDirectory
from posttrain.runs.manifest import read_manifest, require_same_run
from posttrain.runs.metrics import read_metrics

if TYPE_CHECKING:
    from posttrain.runs.plots import Picture

Rows = list[dict[str, Any]]
# Files that only a resume needs, and PEFT's README of the adapter; everything else in a checkpoint is the model.
_LEFT_OUT = ("optimizer", "toolkit_state", "README")
_MEASURES = ("eval_loss", "eval_reward")  # metrics that decide which checkpoint is the best


def loss_results(rows: Rows, counters: Mapping[str, Any]) -> dict[str, Any]:
    """Losses and speed of a run, from the lines of metrics.jsonl and the last checkpoint's counters."""
    return {
        "loss": next((row["loss"] for row in reversed(rows) if "loss" in row), None),
        "validation_loss": next((row["eval_loss"] for row in reversed(rows) if "eval_loss" in row), None),
        "trained_tokens": counters["trained_tokens"],
        "tokens_per_second": round(counters["tokens"] / counters["seconds"], 1),
    }


def finish_run(
    run: RunDirectory,
    export: Literal["last", "best"],
    max_steps: int,
    *,
    pictures: "Mapping[str, Picture] | None" = None,
    results: Callable[[Rows, Mapping[str, Any]], dict[str, Any]] = loss_results,
) -> dict[str, Any]:
    """Export the last or the best checkpoint, draw the plots, and write and return `result.json`.

    Args:
        pictures: the pictures to draw; by default loss and learning rate.
        results: computes the results of this kind of run from the lines of metrics.jsonl and the last counters.

    Raises:
        RunError: the run left no checkpoint.
    """
    from posttrain.runs.plots import PICTURES, plot_run  # heavy: matplotlib

    last = latest_checkpoint(run)
    if last is None:
        raise RunError(f"no complete checkpoint was written to {run.path}")
    rows = read_metrics(run.metrics)
    chosen = _exported_checkpoint(run, export, last, is_measured=any(key in row for row in rows for key in _MEASURES))
    export_checkpoint(run, chosen)
    plot_run(rows, run.plots, pictures or PICTURES)
    counters = last.state["counters"]
    result = {
        "directory": str(run.path),
        "steps": last.step,
        "max_steps": max_steps,
        "exported": chosen.name,
        **results(rows, counters),
        "tokens": counters["tokens"],
        "seconds": round(counters["seconds"], 1),
        "peak_memory_gib": round(peak_memory_bytes() / 2**30, 2),
    }
    run.write_json(run.result, result)
    return result


def finished_result(run: RunDirectory, max_steps: int) -> dict[str, Any] | None:
    """What `finish_run` wrote, if the run ended and this config asks for no more steps.

    A damaged file counts as absent: the run is finished again from its last checkpoint.
    """
    try:
        result = json.loads(run.result.read_text(encoding="utf-8"))
        return result if result["max_steps"] >= max_steps else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def finished_run(run: RunDirectory, max_steps: int, identity: dict[str, Any]) -> dict[str, Any] | None:
    """`finished_result` for `--resume`; prints a note if nothing is left to do.

    Raises:
        ConfigError: the finished run does not have this `identity`.
    """
    result = finished_result(run, max_steps)
    if result is not None:
        require_same_run(read_manifest(run.manifest), identity)
        console.print(f"{run.path} is finished: nothing is left to resume")
    return result


def summary(result: dict[str, Any]) -> str:
    """Summary of a finished run in two lines."""
    losses = f"loss {result['loss']:.4f}"
    if result["validation_loss"] is not None:
        losses += f", validation loss {result['validation_loss']:.4f}"
    return (
        f"{result['steps']} steps, {result['tokens']:,} tokens in {result['seconds']:.0f} s "
        f"({result['tokens_per_second']:,.0f} tok/s), {losses}, peak memory {result['peak_memory_gib']:.1f} GiB\n"
        f"{result['exported']} is exported to {result['directory']}; plots are in its plots folder"
    )


def _exported_checkpoint(
    run: RunDirectory, export: Literal["last", "best"], last: Checkpoint, *, is_measured: bool
) -> Path:
    """The checkpoint to export; prints a note if the best one was wanted and measured but cannot be used."""
    best = best_checkpoint(run, contents=True) if export == "best" else None
    if export == "best" and best is None and is_measured:
        console.print(f"the best checkpoint is missing or damaged, so the last one is exported: {last.path.name}")
    return best or last.path


def export_checkpoint(run: RunDirectory, checkpoint: Path) -> None:
    """Copy the model files of `checkpoint` to the run's folder, each one whole or not at all."""
    for file in sorted(checkpoint.iterdir()):
        if file.is_file() and not file.name.startswith(_LEFT_OUT):
            place = run.path / file.name
            if place.is_symlink():  # its target is not part of the run
                place.unlink()
            with file.open("rb") as source, atomic_writer(place) as target:
                shutil.copyfileobj(source, target, 2**20)


def peak_memory_bytes() -> int:
    """Peak resident memory of this process.

    On Linux, a process inherits the peak that `getrusage` reports from its parent, so a run started from a notebook
    would report the notebook's; the peak in /proc is reset when a program starts.
    """
    status = Path("/proc/self/status")
    if status.is_file() and (found := re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.MULTILINE)):
        return int(found[1]) * 1024
    told = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return told if sys.platform == "darwin" else told * 1024  # bytes on macOS, KiB elsewhere
