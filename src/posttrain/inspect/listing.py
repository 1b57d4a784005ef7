"""List all runs below a folder, with their progress."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.base.locks import holder_of
from posttrain.errors import ConfigError
from posttrain.inspect.folders import KINDS, KeptRun, read_run
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory


@dataclass(frozen=True)
class Summary:
    """One row of the list.

    Attributes:
        step: optimizer steps done.
        last_step: the step at which training ends; None if it is unknown until the data or the dataserver is read.
        latest: the last reward, or the last loss if there is no reward, with its name.
        best: the best held-out reward, or the best held-out loss if there is no reward, with its step.
        seconds: time spent in steps.
    """

    name: str
    kind: str
    step: int
    last_step: int | None
    status: str
    latest: str
    best: str
    tokens: int | None
    seconds: float

    def cells(self) -> list[str]:
        """The row in words, as `COLUMNS` name them."""
        done = f"{self.step}/{self.last_step}" if self.last_step else str(self.step)
        tokens = "" if self.tokens is None else f"{self.tokens:,}"
        return [self.name, self.kind, done, self.status, self.latest, self.best, tokens, _duration(self.seconds)]


COLUMNS = ("run", "kind", "step", "status", "last", "best held out", "tokens", "time")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def list_runs(folder: Path) -> list[Summary]:
    """All runs in a folder and its subfolders, by name; the folder of a run gives that run.

    Raises:
        ConfigError: there is no such folder.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}; give the one that contains the runs (run.output_dir)")
    return [_summary(path, name) for name, path in run_folders(folder)]


def run_folders(folder: Path) -> list[tuple[str, Path]]:
    """Names and folders of all runs in a folder and its subfolders; of a run's folder, that run."""
    return [(str(path.relative_to(folder)) if path != folder else path.name, path) for path in _runs(folder)]


def _runs(folder: Path) -> Iterator[Path]:
    for parent, folders, _ in os.walk(folder):
        run = RunDirectory(Path(parent))
        if run.manifest.is_file() or holder_of(run.lock) is not None:
            folders.clear()  # a run contains no other runs
            yield run.path
        folders.sort()


def _summary(path: Path, name: str) -> Summary:
    holder = holder_of(RunDirectory(path).lock)
    running = None if holder is None else f"running ({holder.pid})" if holder.pid else "running"
    if not RunDirectory(path).manifest.is_file():  # still reading data or loading the model
        return Summary(name, "", 0, None, running or "interrupted", "", "", None, 0.0)
    try:
        run = read_run(path)
    except ConfigError as error:
        return Summary(name, "", 0, None, f"damaged: {error}", "", "", None, 0.0)
    step = run.steps[-1]["step"] if run.steps else 0
    status = running or ("finished" if run.result else "interrupted")
    kind = KINDS.get(run.manifest.get("command", ""), "")
    seconds = sum(_seconds(row) for row in run.steps)
    latest, best = _latest(run.steps), _best(run.rows)
    return Summary(name, kind, step, _last_step(run), status, latest, best, _tokens(run), seconds)


def _last_step(run: KeptRun) -> int | None:
    if run.result:
        return run.result["max_steps"]
    stages = run.config.get("stages") or [{}]
    return run.config["training"]["max_steps"] or stages[-1].get("until_step")


def _seconds(row: dict[str, Any]) -> float:
    return row["seconds"]["all"] if isinstance(row["seconds"], dict) else row["seconds"]


def _latest(steps: Sequence[dict[str, Any]]) -> str:
    for name in ("reward", "loss"):
        value = next((row[name] for row in reversed(steps) if row.get(name) is not None), None)
        if value is not None:
            return f"{name} {value:.4f}"
    return ""


def _best(rows: Sequence[dict[str, Any]]) -> str:
    rewards = [(row["eval_reward"], row["step"]) for row in rows if row.get("eval_reward") is not None]
    losses = [(row["eval_loss"], row["step"]) for row in rows if row.get("eval_loss") is not None]
    if not rewards and not losses:
        return ""
    # Of equal values the first, whose checkpoint is the one marked as best.
    value, step = max(rewards, key=lambda pair: pair[0]) if rewards else min(losses, key=lambda pair: pair[0])
    return f"{value:.4f} at {step}"


def _tokens(run: KeptRun) -> int | None:
    """All tokens so far; in reinforcement learning, those up to the newest checkpoint."""
    if run.steps and "total_tokens" in run.steps[-1]:
        return run.steps[-1]["total_tokens"]
    newest = latest_checkpoint(run.directory)
    return newest.state["counters"]["tokens"] if newest else None
