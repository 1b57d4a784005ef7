"""Put the trained weights and the tokenizer at the root of the run, from a complete checkpoint."""

import shutil
from pathlib import Path

from posttrain.base.files import atomic_writer
from posttrain.runs.directory import RunDirectory

# What only a resume needs, and PEFT's page on the adapter; everything else in a checkpoint is the model.
_LEFT_OUT = ("optimizer", "toolkit_state", "README")
_CHUNK = 2**20  # bytes


def export_checkpoint(run: RunDirectory, checkpoint: Path) -> None:
    """Copy the model files of `checkpoint` to the run's folder, each one whole or not at all."""
    for file in sorted(checkpoint.iterdir()):
        if file.is_file() and not file.name.startswith(_LEFT_OUT):
            place = run.path / file.name
            if place.is_symlink():  # what it leads to is no part of the run
                place.unlink()
            with file.open("rb") as source, atomic_writer(place) as target:
                shutil.copyfileobj(source, target, _CHUNK)
