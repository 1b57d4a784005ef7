"""How weights in training reach a vLLM beside it: all of them with the adapter folded in, or the adapter alone.

Where several processes train together, on one machine, the first writes for all.
"""

import shutil
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

from accelerate.utils import wait_for_everyone

from posttrain.base.processes import is_main_process
from posttrain.inference.vllm import VllmEngine
from posttrain.inference.vllm_weights import write_merged_weights
from posttrain.models.backend import LoadedModel

_SHARED_MEMORY = Path("/dev/shm")


class WeightSync(Protocol):
    """One way to bring weights over."""

    adapter_rank: int
    """Of the adapters that the engine must have room for; 0 where it gets none."""

    def first_folder(self) -> Path:
        """A folder of the model that an engine can start from."""
        ...

    def bring(self, engine: VllmEngine) -> None:
        """Have `engine` answer with the weights as they are now."""
        ...

    def release(self) -> None:
        """Free what has been read: called when the engine has started; `bring` does so by itself."""
        ...

    def close(self) -> None:
        """Remove what was written."""
        ...


class MergedWeights:
    """Writes all weights as a plain model, in shared memory where it has room, for as long as they are read."""

    adapter_rank = 0

    def __init__(self, loaded: LoadedModel, run: Path) -> None:
        """`run`: the run's directory, after which the folder is named."""
        self._loaded = loaded
        self._folder = _fast_folder(run, sum(each.nbytes for each in loaded.model.state_dict().values()))

    def first_folder(self) -> Path:
        """The model as it is now, with its tokenizer."""
        if is_main_process():
            self._loaded.tokenizer.save_pretrained(self._folder)
        self._write()
        return self._folder

    def bring(self, engine: VllmEngine) -> None:
        """Write, load, and free the memory again."""
        self._write()
        engine.load_weights(self._folder)
        self.release()

    def release(self) -> None:
        """Remove the weights when all processes have read them."""
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
    """Hands over the LoRA adapter; the engine has the base model once and for all."""

    def __init__(self, model: Any, base: Path, run: Path) -> None:
        """`model`: of PEFT; `base`: the folder of the model below its adapter; `run`: as in `MergedWeights`."""
        self._model = model
        self._base = base
        self._folder = _fast_folder(run, sum(each.nbytes for each in model.parameters() if each.requires_grad))
        self.adapter_rank: int = model.peft_config["default"].r

    def first_folder(self) -> Path:
        """The base model's own."""
        return self._base

    def bring(self, engine: VllmEngine) -> None:
        """Save the adapter and load it."""
        if is_main_process():
            # PEFT would ask the hub at each step whether the vocabulary has grown.
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
    """An empty folder in memory, or on disk where memory for files is short, as in many containers.

    A run has one name for it, so what a run left behind that was killed is cleared away when it is resumed.
    """
    name = f"posttrain-weights-{blake2b(str(run.absolute()).encode(), digest_size=8).hexdigest()}"
    on_disk, in_memory = Path(tempfile.gettempdir(), name), _SHARED_MEMORY / name
    has_room = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 1.1 * size
    wait_for_everyone()  # all have looked before the first begins to write
    folder = in_memory if has_room else on_disk
    if is_main_process():
        for earlier in (on_disk, in_memory):
            shutil.rmtree(earlier, ignore_errors=True)
        folder.mkdir(mode=0o700)
    wait_for_everyone()
    return folder
