"""Generations in a checkpoint: those that were asked for and not yet trained."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from posttrain.rl.rollout.engines.probe import Expected
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.store.files import FOLDER, generation_name, read_rollouts, write_rollouts


@dataclass(frozen=True)
class Stored:
    """A generation in a checkpoint.

    Attributes:
        version: number of optimizer steps behind the weights that make it.
        rollouts: those of all ranks; None if it must be made again.
        is_graded: whether they have their results.
        weights: the folder of these weights if it must be made again.
        expected: what the training model computed with them, to check the engine that makes it again.
    """

    version: int
    rollouts: list[Rollout] | None
    is_graded: bool
    weights: Path | None = None
    expected: Expected | None = None


def write(folder: Path, number: int, kept: Stored) -> None:
    """Write generation `number` below the checkpoint `folder`; its weights are copied if it must be made again."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    facts = {"version": kept.version, "is_graded": kept.is_graded, "is_made": kept.rollouts is not None}
    write_rollouts(place, generation_name(number), kept.rollouts or [], facts)
    copy = _weights(place, kept.version)
    if kept.weights is not None and kept.expected is not None and not copy.is_dir():
        shutil.copytree(kept.weights, copy)
        kept.expected.write(_expected(place, kept.version))


def read(folder: Path, number: int) -> Stored:
    """A generation as it was written; DataError if a file is damaged."""
    place = folder / FOLDER
    rollouts, facts = read_rollouts(place, generation_name(number))
    version = facts["version"]
    if facts["is_made"]:
        return Stored(version, rollouts, facts["is_graded"])
    return Stored(version, None, facts["is_graded"], _weights(place, version), Expected.read(_expected(place, version)))


def _weights(place: Path, version: int) -> Path:
    return place / f"weights-{version:08d}"


def _expected(place: Path, version: int) -> Path:
    return place / f"probe-{version:08d}.safetensors"
