"""`pushed.json` of a run: which checkpoints are on which hub, so that a resume sends only the others."""

import json
from typing import Any

from posttrain.hub.facts import checkpoint_digest
from posttrain.runs.checkpoints import Checkpoint
from posttrain.runs.directory import RunDirectory


class PushedRecord:
    """What has been pushed, by place; a place is a branch with the address of its hub and its repository.

    Every change is written at once, whole or not at all. A damaged file counts as empty: what is on the hub already is
    not sent again in any case.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        try:
            kept = json.loads(run.pushed.read_text(encoding="utf-8"))
            self._places: dict[str, dict[str, Any]] = {name: dict(facts) for name, facts in kept["pushed"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            self._places = {}
        self._missing: dict[str, str] = {}

    def has(self, place: str, checkpoint: Checkpoint) -> bool:
        """Whether this very model was pushed there."""
        return self._places.get(place, {}).get("model") == checkpoint_digest(checkpoint)

    def add(self, place: str, checkpoint: Checkpoint, commit: str) -> None:
        """Record a push."""
        self._places[place] = {"step": checkpoint.step, "commit": commit, "model": checkpoint_digest(checkpoint)}
        self._missing.pop(str(checkpoint.step), None)
        self._write()

    def miss(self, missing: dict[int, str]) -> None:
        """Record why checkpoints are not there, by step."""
        self._missing = {str(step): reason for step, reason in missing.items()}
        self._write()

    def _write(self) -> None:
        self._run.write_json(self._run.pushed, {"pushed": self._places, "missing": self._missing})
