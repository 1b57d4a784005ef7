"""Hand the weights of a model in training to an engine with its own copy: all of them, merged, or those trained.

They go through a folder: in shared memory (`/dev/shm`) if it has room, or beside the run's own if several machines have
to see it. The live model is only read.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from accelerate.utils import wait_for_everyone

from posttrain.base.processes import is_main_process, on_one_machine, process_rank
from posttrain.errors import ConfigError
from posttrain.inference.loaded import write_trained
from posttrain.models.backend import LoadedModel
from posttrain.models.weights.checkpoint import save_adapter
from posttrain.models.weights.merged import write_merged_weights
from posttrain.models.weights.sharding import takes_part

_SHARED_MEMORY = Path("/dev/shm")
_ONCE = "once"
_START = "start"


class Weights(Protocol):
    """What is handed over: all weights, the adapter, or the parameters that are trained.

    All ranks call the methods together, since each may have only a share of the weights; the main process writes.

    Attributes:
        size: bytes of one version.
        adapter_rank: rank of the adapters that the engine must support; 0 for none.
    """

    size: int
    adapter_rank: int

    def write_once(self, folder: Path) -> None:
        """Write what is the same in all versions."""
        ...

    def write(self, folder: Path) -> None:
        """Write the weights as they are now."""
        ...


class MergedWeights:
    """All weights, with the adapter merged in, as a plain model with its tokenizer."""

    adapter_rank = 0

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        tied_once = {id(each): each for each in loaded.model.state_dict(keep_vars=True).values()}.values()
        written = loaded.compute_dtype.itemsize
        self.size = sum(each.numel() * written if each.is_floating_point() else each.nbytes for each in tied_once)

    def write_once(self, folder: Path) -> None:
        """Write the tokenizer."""
        if is_main_process():
            self._loaded.tokenizer.save_pretrained(folder)

    def write(self, folder: Path) -> None:
        """Write the model; ModelError as `write_merged_weights`."""
        if takes_part(self._loaded.model):
            write_merged_weights(self._loaded.model, folder, self._loaded.compute_dtype)


class AdapterAlone:
    """The LoRA adapter of a PEFT model, for an engine that has the base."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.size = _trained_bytes(model)
        self.adapter_rank: int = model.peft_config["default"].r

    def write_once(self, folder: Path) -> None:
        """Write nothing."""

    def write(self, folder: Path) -> None:
        """Write the adapter in PEFT's format."""
        if takes_part(self._model):
            # Otherwise PEFT would ask the hub at each step whether the vocabulary has grown.
            save_adapter(self._model, folder, save_embedding_layers=False)


class TrainedParameters:
    """The parameters that are trained, bit for bit, for a copy of the model in transformers."""

    adapter_rank = 0

    def __init__(self, model: Any) -> None:
        self._model = model
        self.size = _trained_bytes(model)

    def write_once(self, folder: Path) -> None:
        """Write nothing."""

    def write(self, folder: Path) -> None:
        """Write the parameters."""
        if takes_part(self._model):
            write_trained(self._model, folder)


def _trained_bytes(model: Any) -> int:
    return sum(each.nbytes for each in model.parameters() if each.requires_grad)


class PublishedWeights:
    """Versions of the weights in folders, each until it is released.

    All ranks call the methods together. One folder is written; each rank has links of its own to the
    files, so that none waits for another before it releases them.
    """

    def __init__(self, weights: Weights, run: Path, versions: int = 1) -> None:
        """Make the folder.

        Args:
            run: the run's directory, from which the folder's name is derived.
            versions: how many versions there may be at once.

        Raises:
            ConfigError: there is no room for them.
        """
        self._weights = weights
        self._root = _fast_folder(run, weights.size * versions, versions)
        if is_main_process():
            (self._root / _ONCE).mkdir()
        weights.write_once(self._root / _ONCE)
        wait_for_everyone()

    def start(self) -> Path:
        """Write the weights as they are now, for an engine to start with; they are released with the next version."""
        return self._written(_START, self._write)

    def publish(self, version: int) -> Path:
        """Write the weights as they are now, known as `version`, unless this version was written before."""
        return self._written(_name(version), self._write)

    def adopt(self, version: int, folder: Path) -> Path:
        """Take over weights that were published by an earlier process as `version`, from a copy of their folder."""
        return self._written(_name(version), lambda unfinished: _copy(folder, unfinished))

    def folder(self, version: int) -> Path:
        """This rank's folder of a version that is not released."""
        return self._own / _name(version)

    def release(self, up_to: int) -> None:
        """Remove this rank's links to all versions up to `up_to`, and to the weights of the start."""
        for folder in self._own.glob("v*"):
            if int(folder.name[1:]) <= up_to:
                shutil.rmtree(folder, ignore_errors=True)  # another thread may be at it
        shutil.rmtree(self._own / _START, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def _own(self) -> Path:
        return self._root / f"rank-{process_rank()}"

    def _write(self, folder: Path) -> None:
        if is_main_process():
            shutil.copytree(self._root / _ONCE, folder, copy_function=os.link)
        self._weights.write(folder)

    def _written(self, name: str, write: Callable[[Path], None]) -> Path:
        folder, first = self._own / name, self._root / "rank-0" / name
        if folder.is_dir():
            return folder
        unfinished = self._root / f"unfinished-{name}"
        write(unfinished)
        if is_main_process():
            first.parent.mkdir(exist_ok=True)
            unfinished.rename(first)
        wait_for_everyone()
        if not is_main_process():
            shutil.copytree(first, folder, copy_function=os.link)
        wait_for_everyone()
        return folder


def _name(version: int) -> str:
    return f"v{version:08d}"


def _copy(folder: Path, other: Path) -> None:
    if is_main_process():
        shutil.copytree(folder, other)


def require_room(weights: Weights, run: Path, versions: int) -> None:
    """Raise ConfigError if no place has room for so many versions, before anything is written there.

    Args:
        run: the run's directory; what a killed run of that name left behind counts as room.
    """
    _roomy_place(run, weights.size * versions, versions)


def _fast_folder(run: Path, size: int, versions: int) -> Path:
    """Make an empty folder in the first place with room; in many containers, shared memory is too small.

    The name depends only on the run, so resuming a killed run removes the folder that it left behind.
    """
    wait_for_everyone()
    if is_main_process():
        for place in _places(run):
            shutil.rmtree(place / _folder_name(run), ignore_errors=True)
    wait_for_everyone()
    folder = _roomy_place(run, size, versions) / _folder_name(run)
    if os.path.lexists(folder):
        raise ConfigError(
            f"the weights for the rollout engine would lie in {folder}, but that is there and cannot be removed: does "
            "it belong to another user? Remove it, or choose another run.name or run.output_dir"
        )
    wait_for_everyone()  # all processes have checked this before the first one writes
    if is_main_process():
        folder.mkdir(mode=0o700)
    wait_for_everyone()
    return folder


def _folder_name(run: Path) -> str:
    return f"posttrain-weights-{blake2b(str(run.absolute()).encode(), digest_size=8).hexdigest()}"


def _places(run: Path) -> list[Path]:
    if not on_one_machine():
        return [run.parent]
    return [each for each in (_SHARED_MEMORY, Path(tempfile.gettempdir())) if each.is_dir()]


def _roomy_place(run: Path, size: int, versions: int) -> Path:
    """The first place with room for `size` bytes; ConfigError if there is none."""
    room = {place: shutil.disk_usage(place).free + _left_behind(place / _folder_name(run)) for place in _places(run)}
    roomy = [place for place, free in room.items() if free > 1.1 * size]
    if roomy:
        return roomy[0]
    free = " and ".join(f"{free / 2**30:.1f} GiB in {place}" for place, free in room.items())
    raise ConfigError(
        f"{versions} version{'s' * (versions > 1)} of the weights for the rollout engine take "
        f"{size / 2**30:.1f} GiB, but there are only {free}; free some"
        + (", or lower rollout.staleness" if versions > 2 else "")
    )


def _left_behind(folder: Path) -> int:
    """Bytes of the files in a folder, in which several ranks have links to the same ones."""
    found = [each.stat() for each in folder.rglob("*") if each.is_file()]
    return sum({each.st_ino: each.st_size for each in found}.values())
