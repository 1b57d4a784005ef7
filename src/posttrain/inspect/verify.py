"""Verify a run: recompute its row order, and check its checkpoints against their digests.

No weights are loaded, nothing is trained, and only caches are written.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from posttrain.base.extras import require_extra
from posttrain.base.locks import holder_of
from posttrain.errors import ToolkitError
from posttrain.inspect.folders import KeptRun
from posttrain.runs.checkpoints import STATE_FILE, file_faults
from posttrain.runs.manifest import PARALLEL, PROCESSES, differences

if TYPE_CHECKING:
    from posttrain.inspect.replay import Replay, Report


@dataclass(frozen=True)
class Finding:
    """A check and its outcome, in one line; `unknown` if it cannot be checked."""

    outcome: Literal["holds", "fails", "unknown"]
    text: str


def verify(run: KeptRun, report: "Report") -> list[Finding]:
    """Check everything about a run that can be checked; `report` receives one line about anything that takes time.

    Raises:
        ConfigError: the run is of a kind that this version does not know, or an extra is not installed.
    """
    holder = holder_of(run.directory.lock)
    running = (
        [] if holder is None else [Finding("unknown", f"it is still being trained by {holder}: this is a snapshot")]
    )
    require_extra("train", "toolkit-runs verify")
    from posttrain.inspect.replay import replay_prompts, replay_rows  # imports all trainers

    replay = replay_prompts if run.kind == "rl" else replay_rows
    try:
        replayed = replay(run, report)
    except ToolkitError as error:
        replayed = None
        recomputed = [Finding("fails", f"config and data: they can no longer be read: {error}")]
    else:
        recomputed = [*_identity_findings(run, replayed), *_row_order_findings(run, replayed)]
    expected = replayed.steps if replayed else None
    return [*running, _steps_finding(run), *recomputed, *_checkpoint_findings(run, expected)]


def _steps_finding(run: KeptRun) -> Finding:
    numbers = [row["step"] for row in run.steps]
    for place, number in enumerate(numbers, start=1):
        if number != place:
            return Finding("fails", f"metrics.jsonl: expected step {place}, found step {number}")
    return Finding("holds", f"metrics.jsonl: {len(numbers)} steps, each once and in order")


def _identity_findings(run: KeptRun, replay: "Replay") -> Iterator[Finding]:
    if replay.identity is None:
        return
    saved = run.manifest["identity"]
    # Not compared: what is known only once weights are loaded, what the run's version did not record yet, and the
    # number of processes.
    compared = (saved.keys() & replay.identity.keys()) - {PROCESSES, PARALLEL}
    changed = differences(
        {key: saved[key] for key in compared}, {key: _recorded(replay.identity[key], saved[key]) for key in compared}
    )
    told = f"they differ from the manifest: {'; '.join(changed)}" if changed else "they match the manifest"
    yield Finding("fails" if changed else "holds", f"config, data, weights and tokenizer: {told}")


def _recorded(value: Any, saved: Any) -> Any:
    """A part of an identity without the keys that the saved one does not have.

    The config is the one that the run wrote, so a key that its version did not know has its default.
    """
    if isinstance(value, Mapping) and isinstance(saved, Mapping):
        return {key: _recorded(item, saved[key]) for key, item in value.items() if key in saved}
    return value


def _row_order_findings(run: KeptRun, replay: "Replay") -> Iterator[Finding]:
    if replay.steps is None:
        yield Finding("unknown", f"row order: {replay.why_not}")
        return
    if len(run.steps) > len(replay.steps):
        yield Finding("fails", f"row order: the stages end at step {len(replay.steps)}, but {len(run.steps)} were done")
    for key in replay.steps[0] if replay.steps else ():
        yield _compared(run, replay.steps, key)


def _compared(run: KeptRun, expected: Sequence[Mapping[str, Any]], key: str) -> Finding:
    for row, wanted in zip(run.steps, expected, strict=False):
        if row.get(key) != wanted[key]:
            told = f"metrics.jsonl has {row.get(key)}, but config and data give {wanted[key]}"
            return Finding("fails", f"{key}: at step {row['step']} {told}")
    return Finding("holds", f"{key}: all {len(expected)} steps match config and data")


def _checkpoint_findings(run: KeptRun, expected: Sequence[Mapping[str, Any]] | None) -> Iterator[Finding]:
    """One finding for each checkpoint, and one for each of `latest` and `best` that points to no folder.

    `expected`: what config and data yield for each step, if known.
    """
    folders = sorted(run.directory.path.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name))
    if not folders:
        yield Finding("unknown", "checkpoints: there are none yet")
    for folder in folders:
        faults = list(_checkpoint_faults(folder, run, expected))
        if faults:
            yield Finding("fails", f"{folder.name}: {'; '.join(faults)}")
        else:
            yield Finding("holds", f"{folder.name}: all files are intact, and its state is from that step")
    for name in ("latest", "best"):
        pointer = run.directory.path / name
        named = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else "."
        if not (run.directory.path / named).is_dir():
            yield Finding("fails", f"{name}: it names {named}, which does not exist")


def _checkpoint_faults(folder: Path, run: KeptRun, expected: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
    try:
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        damage, counters = list(file_faults(folder, state["files"], contents=True)), dict(state["counters"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        yield f"{STATE_FILE} is missing or damaged"
        return
    yield from damage
    step = counters["step"]
    if folder.name != f"checkpoint-{step}":
        yield f"its state is from step {step}"
        return
    row = next((row for row in run.steps if row["step"] == step), None)
    if row is None:
        yield f"step {step} is not in metrics.jsonl"
    elif row["order_hash"] != counters["order_hash"]:
        yield f"its order_hash is {counters['order_hash']}, but metrics.jsonl has {row['order_hash']}"
    elif row.get("total_tokens", counters["tokens"]) != counters["tokens"]:
        yield f"it counts {counters['tokens']} tokens, but metrics.jsonl has {row['total_tokens']}"
    wanted = expected[step - 1]["order_hash"] if expected and 0 < step <= len(expected) else None
    if wanted not in (None, counters["order_hash"]):
        yield f"its order_hash is {counters['order_hash']}, but config and data give {wanted}"
