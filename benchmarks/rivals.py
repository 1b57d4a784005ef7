"""The fastest setting of each rival, as `search.py` found it."""

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "results" / "rivals.json"
VERSIONS = ("pinned", "newest")
"""The rival's version: as in the toolkit's own environment, or the newest, in an environment of its own."""


def is_newest(run: str) -> bool:
    """Whether a run is that of a rival's newest version."""
    return "newest" in run.partition(",")[0]


def in_pinned(run: str) -> str:
    """The same run in the pinned version."""
    return run.replace("newest", "pinned", 1)


def fastest(part: str) -> str:
    """The name of the fastest run of the part's rival.

    Raises:
        SystemExit: none is recorded.
    """
    found = read().get(part)
    if found is None:
        raise SystemExit(f"{FILE.name} has no rival for {part}: run python benchmarks/search.py --only {part} first")
    return found["fastest"]


def read() -> dict[str, Any]:
    """What was found for each part."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}
