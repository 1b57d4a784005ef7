"""Put the trained weights and the tokenizer at the root of the run, from a complete checkpoint."""

import shutil
from pathlib import Path

from posttrain.base.files import atomic_writer
from posttrain.runs.directory import RunDirectory

# What only the trainer needs to go on; everything else in a checkpoint is the model.
_TRAINER_FILES = (
    "optimizer",
    "scheduler",
    "scaler",
    "rng_state",
    "trainer_state",
    "toolkit_state",
    "training_args",
    "README",
)
_CHUNK = 2**20  # bytes


def export_checkpoint(run: RunDirectory, checkpoint: Path) -> None:
    """Copy the model files of `checkpoint` to the run's folder, each one whole or not at all."""
    for file in sorted(checkpoint.iterdir()):
        if file.is_file() and not file.name.startswith(_TRAINER_FILES):
            place = run.path / file.name
            if place.is_symlink():  # what it leads to is no part of the run
                place.unlink()
            with file.open("rb") as source, atomic_writer(place) as target:
                shutil.copyfileobj(source, target, _CHUNK)
