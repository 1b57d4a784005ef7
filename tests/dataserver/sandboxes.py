"""Which sandboxes work on this machine."""

from contextlib import suppress
from typing import Any

from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.grading.sandbox import Kind, require_sandbox
from posttrain.errors import ConfigError


def _working() -> list[Kind]:
    working: list[Kind] = []
    for kind in ("bubblewrap", "rlimits"):
        with suppress(ConfigError):
            require_sandbox(kind)
            working.append(kind)
    return working


SANDBOXES = _working()
"""Those that work, the better one first."""


def runnable(grader: type[Grader]) -> dict[str, Any]:
    """Parameters with which a grader works on this machine."""
    return {"sandbox": SANDBOXES[0]} if grader.needs_code_execution else {}
