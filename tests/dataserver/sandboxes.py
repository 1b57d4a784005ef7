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
"""The sandboxes that work, best first."""


def runnable(grader: type[Grader]) -> dict[str, Any]:
    """Parameters that let a grader run on this machine."""
    return {"sandbox": SANDBOXES[0]} if grader.needs_code_execution else {}
