"""Hand the weights of a model in training to an engine with its own copy: all of them, merged, or those trained.

They go through a folder, in shared memory (`/dev/shm`) if it has room. The live model is only read.
"""

import copy
import os
import shutil
import tempfile
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate.utils import wait_for_everyone
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors import SafetensorError

from posttrain.base.processes import is_main_process, process_rank
from posttrain.config.sections.engines import EngineName
from posttrain.errors import ConfigError, ModelError
from posttrain.inference.loaded import write_trained
from posttrain.models.backend import LoadedModel

_SHARED_MEMORY = Path("/dev/shm")
_ONCE = "once"
_START = "start"


def require_one_machine(engine: EngineName) -> None:
    """Raise ConfigError if the run spans several machines: `engine` takes the weights through the memory of one."""
    here, everywhere = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if here != everywhere:
        raise ConfigError(
            f"rollout.engine: {engine} receives the weights through the memory of one machine, but only {here} of the "
            f"{everywhere} processes run on this one; use engine: hf with placement: process"
        )


class Weights(Protocol):
    """What is handed over: all weights, the adapter, or the parameters that are trained.

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
        self._loaded.tokenizer.save_pretrained(folder)

    def write(self, folder: Path) -> None:
        """Write the model; ModelError as `write_merged_weights`."""
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
        # Otherwise PEFT would ask the hub at each step whether the vocabulary has grown.
        self._model.save_pretrained(folder, selected_adapters=["default"], save_embedding_layers=False)


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
        write_trained(self._model, folder)


def _trained_bytes(model: Any) -> int:
    return sum(each.nbytes for each in model.parameters() if each.requires_grad)


class PublishedWeights:
    """Versions of the weights in folders, in shared memory if it has room, each until it is released.

    All ranks, which run on one machine, call the methods together. The first writes; each has links of its own to the
    files, so that none waits for another before it releases them.
    """

    def __init__(self, weights: Weights, run: Path, versions: int = 1) -> None:
        """Make the folder.

        Args:
            run: the run's directory, from which the folder's name is derived.
            versions: how many versions there may be at once.

        Raises:
            ConfigError: neither shared memory nor the disk for temporary files has room for them.
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
        shutil.copytree(self._root / _ONCE, folder, copy_function=os.link)
        self._weights.write(folder)

    def _written(self, name: str, write: Callable[[Path], None]) -> Path:
        folder, first = self._own / name, self._root / "rank-0" / name
        if folder.is_dir():
            return folder
        if is_main_process():
            unfinished = self._root / f"unfinished-{name}"
            write(unfinished)
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
    shutil.copytree(folder, other)


def require_room(weights: Weights, run: Path, versions: int) -> None:
    """Raise ConfigError if neither place has room for so many versions, before anything is written there.

    Args:
        run: the run's directory; what a killed run of that name left behind counts as room.
    """
    _roomy_place(run, weights.size * versions, versions)


def _fast_folder(run: Path, size: int, versions: int) -> Path:
    """Make an empty folder in shared memory, or on disk if shared memory is too small, as in many containers.

    The name depends only on the run, so resuming a killed run removes the folder that it left behind.
    """
    wait_for_everyone()
    if is_main_process():
        for place in _places():
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


def _places() -> list[Path]:
    return [each for each in (_SHARED_MEMORY, Path(tempfile.gettempdir())) if each.is_dir()]


def _roomy_place(run: Path, size: int, versions: int) -> Path:
    """The first place with room for `size` bytes; ConfigError if there is none."""
    room = {place: shutil.disk_usage(place).free + _left_behind(place / _folder_name(run)) for place in _places()}
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


def write_merged_weights(model: Any, folder: Path, dtype: torch.dtype) -> None:
    """Write `model` as it is now into `folder`, as a model of its base's architecture without adapters.

    Each PEFT layer is copied, merged by PEFT's own arithmetic and discarded, so no merge ever has to be undone. A
    merged weight is rounded once: an adapter's change below half a unit in its last place is lost.

    Args:
        model: a causal language model of transformers, with or without PEFT's adapters.
        folder: receives the config and the weights, replacing those of an earlier call.
        dtype: of the weights in the folder; with the engine's own dtype the engine need not cast.

    Raises:
        ModelError: the base is quantised, an adapter cannot be merged into its weights, or the folder cannot be
            written.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    state = _merged_state(base)
    try:
        base.save_pretrained(folder, state_dict={name: _as(dtype, values) for name, values in state.items()})
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot write the merged weights to {folder}: {error}") from error


@torch.no_grad()
def _merged_state(base: Any) -> dict[str, torch.Tensor]:
    """The state dict of the bare model; tensors that no adapter changes share memory with the live model."""
    layers = _adapted_layers(base)
    inside = tuple(f"{name}." for name in layers)
    state = {name: values for name, values in base.state_dict().items() if not name.startswith(inside)}
    for name, layer in layers.items():
        # Moved to the CPU one by one: a device that also trains has no room for all merged weights.
        merged = _merged(name, layer).state_dict(prefix=f"{name}.")
        state |= {key: values.cpu() for key, values in merged.items()}
    if base.config.get_text_config().tie_word_embeddings:
        _drop_tied_head(base, state)
    return state


def _adapted_layers(base: Any) -> dict[str, Any]:
    """PEFT's layers by the names of the modules that they wrap; a nested one counts as part of the outer one."""
    layers: dict[str, Any] = {}
    for name, module in base.named_modules():
        inside = name.startswith(tuple(f"{outer}." for outer in layers))
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper) and not inside:
            layers[name] = module
    return layers


def _merged(name: str, layer: Any) -> torch.nn.Module:
    """A plain copy of `layer`, without adapters, that computes the same."""
    if any(not values.is_floating_point() for values in layer.parameters()):
        raise ModelError(
            f"{name} is quantised, so the adapter cannot be merged into it: load the model with quantization: none, or "
            "let the engine apply the adapter itself"
        )
    layer = copy.deepcopy(layer)
    try:
        if isinstance(layer, AuxiliaryTrainingWrapper):
            return layer.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
        layer.merge()
        return layer.get_base_layer()
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ModelError(f"PEFT cannot merge the adapter of {name}: {error}") from error


def _drop_tied_head(base: Any, state: dict[str, torch.Tensor]) -> None:
    """Drop a tied head's weights, which model files do not store; ModelError if they differ from the embedding."""
    names = {id(module): name for name, module in base.named_modules()}
    embedding, head = names[id(base.get_input_embeddings())], names[id(base.get_output_embeddings())]
    if not torch.equal(state.pop(f"{head}.weight"), state[f"{embedding}.weight"]):
        raise ModelError(
            f"{head} is tied to {embedding}, but an adapter makes them differ, which this architecture cannot "
            "represent; train both or neither"
        )


def _as(dtype: torch.dtype, values: torch.Tensor) -> torch.Tensor:
    return values.to("cpu", dtype if values.is_floating_point() else None)
