"""Record the generations that a run trains, and find those of another run.

RUN/rollouts/generation-00000012.{safetensors,json} hold all groups that generation 12 asked.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import ConfigError
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.store.files import FOLDER, generation_name, generations_in, read_rollouts, write_rollouts
from posttrain.runs.directory import RunDirectory
from posttrain.runs.manifest import read_manifest

_COMMAND = "toolkit-rl-train"


@dataclass(frozen=True)
class Recording:
    """Generations that were recorded.

    Attributes:
        place: where they are, for messages.
        identity: what tells them from those of other runs.
        tokenizer: digest of the tokenizer and template that encoded their prompts.
        numbers: those that there are, in order.
        read: from its number, the iteration that a generation was asked for, and all its rollouts, those of one prompt
            adjacent; DataError if it is damaged.
    """

    place: Path
    identity: Mapping[str, Any]
    tokenizer: str
    numbers: Sequence[int]
    read: Callable[[int], tuple[int, list[Rollout]]]


def open_recording(place: Path, run: RunDirectory) -> Recording:
    """The recording in the run directory `place`, for the run `run` to train on.

    Raises:
        ConfigError: there is no reinforcement learning run, or it is `run` itself.
    """
    if place.resolve() == run.path.resolve():
        raise ConfigError(f"--rollouts-from: {place} is this run's own folder; give this run another --run-name")
    recorded = RunDirectory(place)
    manifest = read_manifest(recorded.manifest) if recorded.manifest.is_file() else {}
    if manifest.get("command") != _COMMAND:
        raise ConfigError(f"--rollouts-from: {place} is not the folder of a run of {_COMMAND}")
    identity = {"run": place.resolve().name, "started": manifest["started"], "identity": manifest["identity"]}

    def read(number: int) -> tuple[int, list[Rollout]]:
        rollouts, facts = read_rollouts(place / FOLDER, generation_name(number))
        return facts["iteration"], rollouts

    return Recording(place, identity, manifest["identity"]["tokenizer"], generations_in(place), read)


class Recorder:
    """Records a run's generations."""

    def __init__(self, run: Path) -> None:
        """`run`: its directory."""
        self._folder = run / FOLDER

    def add(self, generation: int, iteration: int, rollouts: Sequence[Rollout]) -> None:
        """Write a generation, or replace an unfinished one."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_rollouts(self._folder, generation_name(generation), rollouts, {"iteration": iteration})


def discard_recorded(run: Path, first: int) -> None:
    """Remove the recorded generations from `first` on, which a resumed run makes again."""
    for number in generations_in(run):
        if number >= first:
            for file in (run / FOLDER).glob(f"{generation_name(number)}.*"):
                file.unlink()
