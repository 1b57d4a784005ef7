"""Config section `run`: where a run is kept, how often it is saved, and its trackers."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from posttrain.config.keys import shown
from posttrain.config.sections.push import PushConfig
from posttrain.config.sections.trackers import TrackerConfig, require_each_once
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import one_line
from posttrain.errors import ConfigError

# File systems allow 255 bytes, and temporary siblings have longer names.
_LONGEST_NAME = 200


class RunConfig(StrictModel):
    """The run directory is `<output_dir>/<name>`."""

    output_dir: ConfigPath = Path("runs")
    """Folder that contains the runs."""

    name: str | None = None
    """Name of the run; by default the config file's name without its extension."""

    save_every: int = Field(default=100, ge=1)
    """Optimizer steps between checkpoints; one is always written at the end."""

    keep_checkpoints: int = Field(default=2, ge=1)
    """How many of the newest checkpoints to keep; the best one is kept as well."""

    stop_seconds: float = Field(default=30.0, ge=0)
    """After Ctrl-C, how long to wait for completions of later steps that are being made (toolkit-rl-train); the others
    are made after a resume."""

    export: Literal["last", "best"] = "last"
    """Which weights to leave in the run directory: those of the last step, or the best (by validation loss or held-out
    reward)."""

    trackers: Annotated[tuple[TrackerConfig, ...], AfterValidator(require_each_once)] = ()
    """Where to send metrics in addition to `metrics.jsonl`: names, or sections with `kind` and options; nowhere by
    default."""

    push: PushConfig | None = None
    """Send each finished checkpoint to a Hugging Face hub while training goes on; nowhere by default."""

    @field_validator("name")
    @classmethod
    def _name_is_a_folders(cls, name: str | None) -> str | None:
        return name if name is None else require_run_name(name)


def require_run_name(name: str) -> str:
    """Return the name; ConfigError unless it is valid as the name of one folder."""
    if not name.strip() or name in (".", "..") or "\0" in name or Path(name).name != name:
        raise ConfigError(f"a run's name must be a single folder name without a slash, not {shown(name)}")
    try:
        one_line(name)
    except ValueError as error:
        raise ConfigError(f"a run's name must be a single folder name: {error}") from None
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise ConfigError(
            f"a run's name must be a single folder name of at most {_LONGEST_NAME} bytes, not {shown(name)}"
        )
    return name


def require_best_is_measured(run: RunConfig, info: ValidationInfo, *sections: str) -> RunConfig:
    """Return the run section; ValueError if it exports the best weights but none of `sections`, which rank them, is
    there."""
    if run.export == "best" and all(name in info.data and info.data[name] is None for name in sections):
        wanted = " or ".join(f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in sections)
        raise ValueError(f"export: best needs {wanted} section to tell which is best")
    return run
