"""What is known of a run before its model is loaded."""

from dataclasses import dataclass

from posttrain.dataserver.schemas import Meta
from posttrain.rl.clock import Clock
from posttrain.rl.config.rl import RLConfig
from posttrain.runs.directory import RunDirectory


@dataclass(frozen=True)
class RunPlan:
    """A config with what it comes to; `max_steps` counts optimizer steps."""

    config: RLConfig
    clock: Clock
    meta: Meta
    max_steps: int
    run: RunDirectory
