"""Whether a run is what it says it is: its row order recomputed from config and data, and its checkpoints measured.

No weights are loaded and nothing is trained or written but caches.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from posttrain.base.differences import differences
from posttrain.base.extras import require_extra
from posttrain.base.locks import holder_of
from posttrain.errors import ToolkitError
from posttrain.inspect.checkpoint_files import checkpoint_findings
from posttrain.inspect.finding import Finding, Replay, Report
from posttrain.inspect.folders import KeptRun


def verify(run: KeptRun, report: Report) -> list[Finding]:
    """Check everything about a run that can be checked; `report` is told what takes time.

    Raises:
        ConfigError: the run is of a kind that this version does not know, or an extra is not installed.
    """
    holder = holder_of(run.directory.lock)
    running = [] if holder is None else [Finding("unknown", f"it is being trained by {holder}: this is a moment of it")]
    replay = _replay_of(run)
    require_extra("train", "toolkit-runs verify")
    try:
        replayed = replay(run, report)
    except ToolkitError as error:
        replayed = None
        recomputed = [Finding("fails", f"config and data: they cannot be read as they were: {error}")]
    else:
        recomputed = [*_identity_findings(run, replayed), *_row_order_findings(run, replayed)]
    expected = replayed.steps if replayed else None
    return [*running, _steps_finding(run), *recomputed, *checkpoint_findings(run, expected)]


def _replay_of(run: KeptRun) -> Callable[[KeptRun, Report], Replay]:
    if run.kind == "rl":
        from posttrain.inspect.prompts import replay_prompts

        return replay_prompts
    from posttrain.inspect.rows import replay_rows

    return replay_rows


def _steps_finding(run: KeptRun) -> Finding:
    numbers = [row["step"] for row in run.steps]
    for place, number in enumerate(numbers, start=1):
        if number != place:
            return Finding("fails", f"metrics.jsonl: where step {place} should be there is step {number}")
    return Finding("holds", f"metrics.jsonl: {len(numbers)} steps, each once and in order")


def _identity_findings(run: KeptRun, replay: Replay) -> Iterator[Finding]:
    if replay.identity is None:
        return
    saved = run.manifest["identity"]
    # What is known only once weights are loaded is not compared, nor what the run's version did not write down yet,
    # nor how many processes there are now.
    compared = (saved.keys() & replay.identity.keys()) - {"processes"}
    changed = differences(*({key: each[key] for key in compared} for each in (saved, replay.identity)))
    told = f"they are not those of the manifest: {'; '.join(changed)}" if changed else "they are those of the manifest"
    yield Finding("fails" if changed else "holds", f"config, data, weights and tokenizer: {told}")


def _row_order_findings(run: KeptRun, replay: Replay) -> Iterator[Finding]:
    if replay.steps is None:
        yield Finding("unknown", f"row order: {replay.why_not}")
        return
    if len(run.steps) > len(replay.steps):
        yield Finding("fails", f"row order: the stages end at step {len(replay.steps)}, and {len(run.steps)} were done")
    for key in replay.steps[0] if replay.steps else ():
        yield _compared(run, replay.steps, key)


def _compared(run: KeptRun, expected: Sequence[Mapping[str, Any]], key: str) -> Finding:
    for row, wanted in zip(run.steps, expected, strict=False):
        if row.get(key) != wanted[key]:
            told = f"metrics.jsonl has {row.get(key)}, and config and data give {wanted[key]}"
            return Finding("fails", f"{key}: at step {row['step']} {told}")
    return Finding("holds", f"{key}: all {len(expected)} steps are as config and data give them")
