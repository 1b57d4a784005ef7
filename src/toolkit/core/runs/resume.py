"""Where a run goes on, and the proof that it is the same run."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.core.curriculum.curriculum import Curriculum
from toolkit.core.curriculum.order_hash import order_hash_after
from toolkit.core.runs import checkpoints, metrics
from toolkit.core.runs.counters import RunCounters
from toolkit.core.runs.directory import RunDirectory, clear_run_directory
from toolkit.core.runs.manifest import require_same_run
from toolkit.errors import ConfigError


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to go on from, or None for a start from the beginning; `counters` are those at that point.

    `compiled`: whether the run was trained through torch.compile so far, None at a start.
    """

    checkpoint: Path | None
    counters: RunCounters
    compiled: bool | None = None


def find_resume_point(
    run: RunDirectory, identity: dict[str, Any], curriculum: Curriculum, *, resume: bool
) -> ResumePoint:
    """The newest complete checkpoint of `run`, after checking that this config would have led there.

    Raises:
        ConfigError: data, seed, template or the shape of a step changed, or the stages before the checkpoint did.
    """
    beginning = ResumePoint(None, RunCounters())
    if not resume or not run.manifest.is_file():
        return beginning
    saved = json.loads(run.manifest.read_text(encoding="utf-8"))
    require_same_run(saved, identity)
    latest = checkpoints.latest_checkpoint(run)
    if latest is None:
        return beginning
    counters = RunCounters(**latest.state["counters"])
    if latest.step > curriculum.total_steps:
        raise ConfigError(
            f"the run is at step {latest.step}, beyond the last stage, which ends at {curriculum.total_steps}; "
            "put the stages back, or start a new run with --run-name"
        )
    if order_hash_after(curriculum, latest.step) != counters.order_hash:
        raise ConfigError(
            f"the stages before step {latest.step} changed: they would have drawn other rows than the run has seen; "
            "put them back (stages after that step may change), or start a new run with --run-name"
        )
    return ResumePoint(latest.path, counters, saved["identity"].get("compiled"))


def prepare_run_directory(run: RunDirectory, point: ResumePoint) -> None:
    """Make the folder as it was at `point`: empty for a start, without what came after it for a resume."""
    if point.checkpoint is None:
        clear_run_directory(run)
        return
    checkpoints.discard_unfinished(run, point.counters.step)
    metrics.keep_until(run.metrics, point.counters.step)
    run.result.unlink(missing_ok=True)
