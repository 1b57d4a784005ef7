"""What is known of a run before its model is loaded."""

from dataclasses import dataclass

from toolkit.core.runs.directory import RunDirectory
from toolkit.dataserver.schemas import Meta
from toolkit.rl.clock import Clock
from toolkit.rl.config.rl import RLConfig


@dataclass(frozen=True)
class RunPlan:
    """A config with what it comes to; `max_steps` counts optimizer steps."""

    config: RLConfig
    clock: Clock
    meta: Meta
    max_steps: int
    run: RunDirectory
