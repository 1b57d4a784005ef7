"""Copy the weights of a model in training to an engine with its own copy: all of them, merged, or the adapter alone.

They go through a folder, in shared memory (`/dev/shm`) if it has room. The live model is only read. If several
processes train together, on one machine, the first writes for all.
"""

import copy
import os
import shutil
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate.utils import wait_for_everyone
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors import SafetensorError

from posttrain.base.processes import is_main_process
from posttrain.config.sections.engines import EngineName
from posttrain.errors import ConfigError, ModelError
from posttrain.models.backend import LoadedModel

_SHARED_MEMORY = Path("/dev/shm")


class _LoadsWeights(Protocol):
    def load_weights(self, folder: Path) -> None: ...


class _UsesAdapter(Protocol):
    def use_adapter(self, folder: Path) -> None: ...


def require_one_machine(engine: EngineName) -> None:
    """Raise ConfigError if the run spans several machines: `engine` takes the weights through the memory of one."""
    here, everywhere = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if here != everywhere:
        raise ConfigError(
            f"rollout.engine: {engine} receives the weights through the memory of one machine, but only {here} of the "
            f"{everywhere} processes run on this one; use engine: hf"
        )


class MergedWeights:
    """Writes all weights, merged, as a plain model, and removes them once read; in shared memory if it has room."""

    adapter_rank = 0
    """Rank of the adapters that the engine must support; 0 for none."""

    def __init__(self, loaded: LoadedModel, run: Path) -> None:
        """`run`: the run's directory, from which the folder's name is derived."""
        self._loaded = loaded
        self._folder = _fast_folder(run, sum(each.nbytes for each in loaded.model.state_dict().values()))

    def first_folder(self) -> Path:
        """Write the model as it is now, with its tokenizer, and return the folder."""
        if is_main_process():
            self._loaded.tokenizer.save_pretrained(self._folder)
        self._write()
        return self._folder

    def bring(self, engine: _LoadsWeights) -> None:
        """Write the weights, load them into the engine, and free the memory again."""
        self._write()
        engine.load_weights(self._folder)
        self.release()

    def release(self) -> None:
        """Remove the weights once all processes have read them."""
        wait_for_everyone()
        if is_main_process():
            for file in self._folder.glob("*.safetensors"):
                file.unlink()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _write(self) -> None:
        if is_main_process():
            write_merged_weights(self._loaded.model, self._folder, self._loaded.compute_dtype)
        wait_for_everyone()


class AdapterAlone:
    """Hands over the LoRA adapter; the engine loads the base model only once."""

    def __init__(self, model: Any, base: Path, run: Path) -> None:
        """`model`: a PEFT model; `base`: the folder of its base model; `run`: as in `MergedWeights`."""
        self._model = model
        self._base = base
        self._folder = _fast_folder(run, sum(each.nbytes for each in model.parameters() if each.requires_grad))
        self.adapter_rank: int = model.peft_config["default"].r

    def first_folder(self) -> Path:
        """The folder of the base model."""
        return self._base

    def bring(self, engine: _UsesAdapter) -> None:
        """Save the adapter and load it into the engine."""
        if is_main_process():
            # Otherwise PEFT would ask the hub at each step whether the vocabulary has grown.
            self._model.save_pretrained(self._folder, selected_adapters=["default"], save_embedding_layers=False)
        wait_for_everyone()
        engine.use_adapter(self._folder)
        self.release()

    def release(self) -> None:
        """Wait until all processes have read the adapter."""
        wait_for_everyone()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _fast_folder(run: Path, size: int) -> Path:
    """Make an empty folder in shared memory, or on disk if shared memory is too small, as in many containers.

    The name depends only on the run, so resuming a killed run removes the folder that it left behind.
    """
    name = f"posttrain-weights-{blake2b(str(run.absolute()).encode(), digest_size=8).hexdigest()}"
    on_disk, in_memory = Path(tempfile.gettempdir(), name), _SHARED_MEMORY / name
    has_room = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 1.1 * size
    wait_for_everyone()  # all processes have checked the free space before the first one writes
    folder = in_memory if has_room else on_disk
    if is_main_process():
        for earlier in (on_disk, in_memory):
            shutil.rmtree(earlier, ignore_errors=True)
        folder.mkdir(mode=0o700)
    wait_for_everyone()
    return folder


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
