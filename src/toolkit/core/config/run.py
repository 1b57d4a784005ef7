"""Where a run is kept, how often it is saved, and who is told."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from toolkit.core.config.strict import ConfigPath, StrictModel

Tracker = Literal["tensorboard", "wandb", "trackio"]


class RunConfig(StrictModel):
    """The run directory is `<output_dir>/<name>`."""

    output_dir: ConfigPath = Path("runs")
    """Folder that holds the runs."""

    name: str | None = None
    """Name of the run; the config file's name without its ending unless given."""

    save_every: int = Field(default=100, ge=1)
    """Optimizer steps between two checkpoints; one is always written at the end."""

    keep_checkpoints: int = Field(default=2, ge=1)
    """How many of the newest checkpoints stay; the best one stays besides."""

    export: Literal["last", "best"] = "last"
    """Which weights the run directory ends up with: the last step's, or those of the best validation loss."""

    trackers: tuple[Tracker, ...] = ()
    """Where metrics are sent besides `metrics.jsonl`; nowhere unless asked."""
