"""Generations in a checkpoint: those that were asked for and not yet trained."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load, save

from posttrain.base.files import atomic_write_bytes
from posttrain.base.text import as_shown, first_line
from posttrain.errors import DataError
from posttrain.inference.engine import FinishedCompletions
from posttrain.inference.process.messages import completion_arrays, read_completions, read_requests, request_arrays
from posttrain.rl.rollout.engines.probe import Expected
from posttrain.rl.rollout.replay.candidates import Candidates
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
        candidates: what it may replay.
    """

    version: int
    rollouts: list[Rollout] | None
    is_graded: bool
    weights: Path | None = None
    expected: Expected | None = None
    candidates: Candidates | None = None


def write(folder: Path, number: int, kept: Stored) -> None:
    """Write generation `number` below the checkpoint `folder`; its weights are copied if it must be made again."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    facts = {"version": kept.version, "is_graded": kept.is_graded, "is_made": kept.rollouts is not None}
    write_rollouts(place, generation_name(number), kept.rollouts or [], facts)
    if kept.candidates is not None:
        write_rollouts(place, _candidates(number), *kept.candidates.rollouts_and_facts())
    copy = _weights(place, kept.version)
    if kept.weights is not None and kept.expected is not None and not copy.is_dir():
        shutil.copytree(kept.weights, copy)
        kept.expected.write(_expected(place, kept.version))


def write_carried(folder: Path, generation: int, rollouts: Sequence[Rollout]) -> None:
    """Write what `generation` left unfinished below the checkpoint `folder`."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    write_rollouts(place, _CARRIED, rollouts, {"generation": generation})


def read_carried(folder: Path) -> tuple[int, list[Rollout]]:
    """The number of a generation and what it left unfinished; DataError if a file is missing or damaged."""
    rollouts, facts = read_rollouts(folder / FOLDER, _CARRIED)
    return facts["generation"], rollouts


def read(folder: Path, number: int) -> Stored:
    """A generation as it was written; DataError if a file is damaged."""
    place = folder / FOLDER
    rollouts, facts = read_rollouts(place, generation_name(number))
    version, candidates = facts["version"], None
    if (place / f"{_candidates(number)}.json").is_file():
        candidates = Candidates.of_rollouts_and_facts(*read_rollouts(place, _candidates(number)))
    if facts["is_made"]:
        return Stored(version, rollouts, facts["is_graded"], candidates=candidates)
    expected = Expected.read(_expected(place, version))
    return Stored(version, None, facts["is_graded"], _weights(place, version), expected, candidates)


def write_finished(folder: Path, number: int, finished: FinishedCompletions) -> None:
    """Write the completions that generation `number` has so far below the checkpoint `folder`."""
    place, requests = folder / FOLDER, finished.requests()
    place.mkdir(exist_ok=True)
    arrays = {**request_arrays(requests), **completion_arrays([*finished.of(requests).items()])}
    atomic_write_bytes(place / f"{_FINISHED}{number:08d}.safetensors", save(arrays))


def read_finished(folder: Path) -> dict[int, FinishedCompletions]:
    """What `write_finished` wrote, by generation; DataError if a file is damaged."""
    found: dict[int, FinishedCompletions] = {}
    for file in (folder / FOLDER).glob(f"{_FINISHED}*.safetensors"):
        finished = found[int(file.stem.removeprefix(_FINISHED))] = FinishedCompletions()
        try:
            arrays = load(file.read_bytes())
            finished.extend(read_requests(arrays), read_completions(arrays))
        except (SafetensorError, LookupError) as error:
            raise DataError(f"{as_shown(file)} is damaged: {first_line(error)}") from None
    return found


_CARRIED = "carried"
_FINISHED = "finished-"


def _candidates(number: int) -> str:
    return f"candidates-{number:08d}"


def _weights(place: Path, version: int) -> Path:
    return place / f"weights-{version:08d}"


def _expected(place: Path, version: int) -> Path:
    return place / f"probe-{version:08d}.safetensors"
