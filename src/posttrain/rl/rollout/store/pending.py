"""Generations in a checkpoint: those that were asked for and not yet trained."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.rl.rollout.replay.candidates import Candidates
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.store.files import read_rollouts, write_rollouts


@dataclass(frozen=True)
class Stored:
    """A generation in a checkpoint.

    Attributes:
        version: number of optimizer steps behind the weights that make it.
        rollouts: those of all ranks; None if it must be made again.
        is_graded: whether they have their results.
        weights: the folder of these weights if it must be made again.
        candidates: what it may replay.
    """

    version: int
    rollouts: list[Rollout] | None
    is_graded: bool
    weights: Path | None = None
    candidates: Candidates | None = None


def write(folder: Path, number: int, kept: Stored, weights: Path | None) -> None:
    """Write generation `number` below the checkpoint `folder`; `weights` are copied if it must be made again."""
    place = folder / _FOLDER
    place.mkdir(exist_ok=True)
    facts = {"version": kept.version, "is_graded": kept.is_graded, "is_made": kept.rollouts is not None}
    write_rollouts(place, _name(number), kept.rollouts or [], facts)
    if kept.candidates is not None:
        write_rollouts(place, _candidates(number), *kept.candidates.rollouts_and_facts())
    copy = _weights(place, kept.version)
    if weights is not None and not copy.is_dir():
        shutil.copytree(weights, copy)


def write_carried(folder: Path, generation: int, rollouts: Sequence[Rollout]) -> None:
    """Write what `generation` left unfinished below the checkpoint `folder`."""
    place = folder / _FOLDER
    place.mkdir(exist_ok=True)
    write_rollouts(place, _CARRIED, rollouts, {"generation": generation})


def read_carried(folder: Path) -> tuple[int, list[Rollout]]:
    """The number of a generation and what it left unfinished; DataError if a file is missing or damaged."""
    rollouts, facts = read_rollouts(folder / _FOLDER, _CARRIED)
    return facts["generation"], rollouts


def numbers(folder: Path) -> list[int]:
    """The generations in the checkpoint `folder`, in order."""
    return sorted(int(file.stem.removeprefix(_NAME)) for file in (folder / _FOLDER).glob(f"{_NAME}*.json"))


def read(folder: Path, number: int) -> Stored:
    """A generation as it was written; DataError if a file is damaged."""
    place = folder / _FOLDER
    rollouts, facts = read_rollouts(place, _name(number))
    version, is_made = facts["version"], facts["is_made"]
    candidates = None
    if (place / f"{_candidates(number)}.json").is_file():
        candidates = Candidates.of_rollouts_and_facts(*read_rollouts(place, _candidates(number)))
    weights = None if is_made else _weights(place, version)
    return Stored(version, rollouts if is_made else None, facts["is_graded"], weights, candidates)


_FOLDER = "rollouts"
_NAME = "generation-"
_CARRIED = "carried"


def _name(number: int) -> str:
    return f"{_NAME}{number:08d}"


def _candidates(number: int) -> str:
    return f"candidates-{number:08d}"


def _weights(place: Path, version: int) -> Path:
    return place / f"weights-{version:08d}"
