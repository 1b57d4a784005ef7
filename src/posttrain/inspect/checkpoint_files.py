"""Whether the checkpoints of a run are whole, and are those of the steps that they say."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from posttrain.inspect.finding import Finding
from posttrain.inspect.folders import KeptRun
from posttrain.runs.checkpoints import STATE_FILE, file_faults


def checkpoint_findings(run: KeptRun, expected: Sequence[Mapping[str, Any]] | None) -> Iterator[Finding]:
    """One finding for each checkpoint, and one for each of `latest` and `best` that names none.

    `expected` is what config and data give for each step, where that is known.
    """
    folders = sorted(run.directory.path.glob("checkpoint-*"), key=lambda path: (len(path.name), path.name))
    if not folders:
        yield Finding("unknown", "checkpoints: there is none yet")
    for folder in folders:
        faults = list(_faults(folder, run, expected))
        if faults:
            yield Finding("fails", f"{folder.name}: {'; '.join(faults)}")
        else:
            yield Finding("holds", f"{folder.name}: all files are as they were written, and its state is of that step")
    for name in ("latest", "best"):
        pointer = run.directory.path / name
        named = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else "."
        if not (run.directory.path / named).is_dir():
            yield Finding("fails", f"{name}: it names {named}, which is not there")


def _faults(folder: Path, run: KeptRun, expected: Sequence[Mapping[str, Any]] | None) -> Iterator[str]:
    try:
        state = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
        damage, counters = list(file_faults(folder, state["files"], contents=True)), dict(state["counters"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        yield f"{STATE_FILE} is missing or damaged"
        return
    yield from damage
    step = counters["step"]
    if folder.name != f"checkpoint-{step}":
        yield f"its state is of step {step}"
        return
    row = next((row for row in run.steps if row["step"] == step), None)
    if row is None:
        yield f"step {step} is not in metrics.jsonl"
    elif row["order_hash"] != counters["order_hash"]:
        yield f"its order_hash is {counters['order_hash']}, and metrics.jsonl has {row['order_hash']}"
    elif row.get("total_tokens", counters["tokens"]) != counters["tokens"]:
        yield f"it counts {counters['tokens']} tokens, and metrics.jsonl {row['total_tokens']}"
    wanted = expected[step - 1]["order_hash"] if expected and 0 < step <= len(expected) else None
    if wanted not in (None, counters["order_hash"]):
        yield f"its order_hash is {counters['order_hash']}, and config and data give {wanted}"
