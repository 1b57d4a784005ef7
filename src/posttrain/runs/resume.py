"""Find the checkpoint to resume from and its counters, and check that the run is the same."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.data.curriculum.order_hash import OrderHash, order_hash_after
from posttrain.data.curriculum.step_plan import StepPlan
from posttrain.errors import ConfigError
from posttrain.runs import metrics
from posttrain.runs.checkpoints import FORMAT, Checkpoint, Damaged, discard_unfinished, newest_sound_checkpoint
from posttrain.runs.directory import RunDirectory, clear_run_directory
from posttrain.runs.manifest import read_manifest, require_same_run

# Files that show that something was learnt: pointers to checkpoints, which may be gone, and other outputs of a run.
_LEARNT = ("latest", "best", "result.json", "*.safetensors", "merged*", "damaged-checkpoint-*")


@dataclass
class RunCounters:
    """Totals after `step` optimizer steps, restored exactly on resume.

    Attributes:
        seconds: time spent in steps.
        without_signal: generations in a row, up to the last one, that had nothing to learn from.
    """

    step: int = 0
    rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    order_hash: str = field(default_factory=lambda: OrderHash().state())
    without_signal: int = 0

    def advance(self, plan: StepPlan, seconds: float) -> None:
        """Count one finished step of a plan."""
        order_hash = OrderHash.from_state(self.order_hash).update(plan.draws)
        self.count(len(plan.draws), plan.tokens, plan.trained_tokens, seconds, order_hash)

    def count(self, rows: int, tokens: int, trained_tokens: int, seconds: float, order_hash: str) -> None:
        """Count one finished step; `order_hash` covers all rows up to and including it."""
        self.step += 1
        self.rows += rows
        self.tokens += tokens
        self.trained_tokens += trained_tokens
        self.seconds += seconds
        self.order_hash = order_hash

    def as_dict(self) -> dict[str, object]:
        """The counters for a checkpoint; `RunCounters(**...)` restores them."""
        return asdict(self)


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to resume from, or None to start from the beginning, and the counters at that point.

    Attributes:
        starts_again: whether a run that had no checkpoint yet is started again.
        compiled: whether the run has used torch.compile so far; None at a start.
        padding_free: whether it has trained without padding so far; None at a start.
        damaged: checkpoints that were skipped because they are damaged.
    """

    checkpoint: Path | None
    counters: RunCounters
    starts_again: bool = False
    compiled: bool | None = None
    padding_free: bool | None = None
    damaged: tuple[Damaged, ...] = ()


def find_resume_point(
    run: RunDirectory, identity: dict[str, Any], curriculum: Curriculum, *, resume: bool
) -> ResumePoint:
    """The newest sound checkpoint of `run`, after checking that this config would have led to it.

    Raises:
        ConfigError: as `resume_point`, or the stages before the checkpoint changed.
    """

    def require_same_rows(counters: RunCounters) -> None:
        if counters.step > curriculum.total_steps:
            raise ConfigError(
                f"the run is at step {counters.step}, beyond the last stage, which ends at {curriculum.total_steps}; "
                "restore the stages, or start a new run with --run-name"
            )
        if order_hash_after(curriculum, counters.step) != counters.order_hash:
            raise ConfigError(
                f"the stages before step {counters.step} changed: they would have drawn other rows than the run has "
                "seen; restore them (stages after that step may change), or start a new run with --run-name"
            )

    return resume_point(run, identity, require_same_rows, resume=resume)


def resume_point(
    run: RunDirectory, identity: dict[str, Any], require_same_way: Callable[[RunCounters], None], *, resume: bool
) -> ResumePoint:
    """The newest sound checkpoint of `run`, or the beginning if there is none yet or `resume` is false.

    Args:
        require_same_way: raises ConfigError if this config would not have led to a checkpoint with these counters.

    Raises:
        ConfigError: data, seed, template or the shape of a step changed; the checkpoint has another format; all
            checkpoints are damaged, or gone while other outputs remain; or as `require_same_way`.
    """
    if not resume or not run.manifest.is_file():
        return ResumePoint(None, RunCounters())
    saved = read_manifest(run.manifest)
    newest, damaged = newest_sound_checkpoint(run)
    if newest is not None:
        _require_known_format(newest)
    require_same_run(saved, identity)
    if newest is None:
        _require_nothing_learnt(run, damaged)
        return ResumePoint(None, RunCounters(), starts_again=True)
    counters = RunCounters(**newest.state["counters"])
    require_same_way(counters)
    before = saved["identity"]
    return ResumePoint(
        newest.path,
        counters,
        compiled=before.get("compiled"),
        padding_free=before.get("padding_free"),
        damaged=damaged,
    )


def _require_known_format(checkpoint: Checkpoint) -> None:
    if checkpoint.format != FORMAT:
        raise ConfigError(
            f"{checkpoint.path} was written by another version of the toolkit (checkpoint format {checkpoint.format}, "
            f"and this version resumes format {FORMAT}); finish the run with that version, or start another with "
            "--run-name. What it has trained can be merged and used as before"
        )


def _require_nothing_learnt(run: RunDirectory, damaged: Sequence[Damaged]) -> None:
    """Raise ConfigError if starting again would remove the last traces of what was learnt."""
    if damaged:
        told = "\n  ".join(f"{each.path.name}: {each.reason}" for each in damaged)
        raise ConfigError(
            f"every checkpoint in {run.path} is damaged, so there is nothing to resume from:\n  {told}\n"
            "restore the files, start again with --overwrite, or start another run with --run-name"
        )
    learnt = sorted(path.name for pattern in _LEARNT for path in run.path.glob(pattern))
    if learnt:
        raise ConfigError(
            f"there is no checkpoint in {run.path} to resume from, and starting again would remove what was learnt "
            f"({', '.join(learnt)}); do so with --overwrite, or start another run with --run-name"
        )


def prepare_run_directory(run: RunDirectory, point: ResumePoint) -> None:
    """Restore the folder to its state at `point`: empty it for a start, remove what came later for a resume.

    Logs stay after a resume, and so do the names of trackers' runs, even if the run starts from the beginning.
    """
    if point.checkpoint is None:
        clear_run_directory(run, keep=(run.logs, run.trackers) if point.starts_again else ())
        return
    discard_unfinished(run, point.counters.step)
    metrics.keep_until(run.metrics, point.counters.step)
    metrics.tell_missing_steps(run.metrics, point.counters.step)
    run.result.unlink(missing_ok=True)
