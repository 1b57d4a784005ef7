"""Read and write `metrics.jsonl`: one JSON object per step and per evaluation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.base.console import console
from posttrain.base.files import atomic_write_bytes, atomic_write_text

# Keys whose values differ between two runs of the same command; everything else in metrics.jsonl repeats exactly.
TIMING_KEYS = frozenset({"seconds", "tokens_per_second", "peak_memory_gib"})


def append_metrics(path: Path, values: dict[str, Any]) -> None:
    """Add one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values, ensure_ascii=False) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line; damaged lines and a last line cut short by a kill are left out."""
    return _read(path)[0]


def keep_until(path: Path, step: int) -> None:
    """Drop the lines of steps after `step`, which a resumed run writes again.

    If lines are damaged, keep a copy of the file as `damaged-<name>` and print a note.
    """
    rows, damaged = _read(path)
    if damaged:
        aside = path.with_name(f"damaged-{path.name}")
        atomic_write_bytes(aside, path.read_bytes())
        console.print(f"{path.name} is damaged at {_listed('line', damaged)}; the original is kept as {aside.name}")
    kept = [row for row in rows if row["step"] <= step]
    atomic_write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))


def tell_missing_steps(path: Path, step: int) -> None:
    """Print which optimizer steps up to `step` have no line."""
    found = {row["step"] for row in read_metrics(path) if "order_hash" in row}
    missing = [each for each in range(1, step + 1) if each not in found]
    if missing:
        console.print(f"{path.name} has no line for {_listed('step', missing)}, so plots and warnings are incomplete")


def _read(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """The whole lines, and the numbers of the damaged ones."""
    if not path.is_file():
        return [], []
    rows, damaged = [], []
    # Bytes: a kill may cut a character in two, and names may contain other characters that end a line in text mode.
    *lines, last = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        row = _parsed(line)
        if row is None:
            damaged.append(number)
        else:
            rows.append(row)
    unfinished = _parsed(last)
    return [*rows, *([] if unfinished is None else [unfinished])], damaged


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
        return row if isinstance(row["step"], int) else None
    except (ValueError, LookupError, TypeError):
        return None


def _listed(what: str, numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
    return f"{what} {numbers[0]}{more}"
