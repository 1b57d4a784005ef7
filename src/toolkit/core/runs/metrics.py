"""`metrics.jsonl`: one JSON object per optimizer step and per evaluation."""

import json
from pathlib import Path
from typing import Any

from toolkit.core.files import atomic_write_text

# What differs between two runs of the same command: everything else in metrics.jsonl repeats exactly.
TIMING_KEYS = frozenset({"seconds", "tokens_per_second", "peak_memory_gib"})


def append_metrics(path: Path, values: dict[str, Any]) -> None:
    """Add one line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(values, ensure_ascii=False) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line; a last line cut short by a kill is left out."""
    if not path.is_file():
        return []
    rows = []
    # Bytes: a kill may cut a letter in two, and what else counts as a line's end in text may stand in a name.
    for line in path.read_bytes().split(b"\n"):
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def keep_until(path: Path, step: int) -> None:
    """Drop the lines of steps after `step`, which a resumed run writes anew."""
    kept = [row for row in read_metrics(path) if row["step"] <= step]
    atomic_write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))
