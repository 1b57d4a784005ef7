"""What the training commands do alike before they train: load the config, name the run, check what it needs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from posttrain.base.console import console
from posttrain.base.extras import require_extra
from posttrain.base.text import as_shown
from posttrain.cli.doorway import overrides
from posttrain.config.load import load_config
from posttrain.hub.check import require_push
from posttrain.runs.checks import choose_run_name, require_optimizer, require_room_for_run

T = TypeVar("T", bound=BaseModel)


def load_run(
    config: Path, model: type[T], set_: Sequence[str] | None, output_dir: Path | None, run_name: str | None
) -> tuple[T, str]:
    """The config and the name of its run, which has room where it would be; which files it extends is printed."""
    settings: Any = load_config(config, model, overrides(set_, run__output_dir=output_dir))
    name = choose_run_name(run_name, settings.run, config)
    require_room_for_run(settings.run)
    files = dict.fromkeys(place.rpartition(":")[0] for place in settings.origins.values() if place[:2] != "--")
    if below := [name for name in files if name != as_shown(config)]:
        console.print(f"config          {as_shown(config)} over {', '.join(below)}")
    return settings, name


def require_start(settings: Any, program: str, *, dry_run: bool) -> None:
    """Check where checkpoints are pushed in a dry run; otherwise what this machine needs, which may be another."""
    if dry_run:
        require_push(settings)
    else:
        require_extra("train", program)
        require_optimizer(settings.training)
