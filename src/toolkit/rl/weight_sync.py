"""How weights in training reach a vLLM beside it: all of them with the adapter folded in, or the adapter alone."""

import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

from accelerate.utils import broadcast_object_list, wait_for_everyone

from toolkit.core.models.base import LoadedModel
from toolkit.core.runs.processes import is_main_process
from toolkit.inference.vllm import VllmEngine
from toolkit.inference.vllm_weights import write_merged_weights

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

    def close(self) -> None:
        """Remove what was written."""
        ...


class MergedWeights:
    """Writes all weights as a plain model, in shared memory where it has room, for as long as they are read.

    Where several processes train together, on one machine, the first writes for all.
    """

    adapter_rank = 0

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded
        self._folder = _fast_folder(_bytes_of(loaded.model))

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

    def __init__(self, model: Any, base: Path) -> None:
        """`model`: of PEFT; `base`: the folder of the model below its adapter."""
        self._model = model
        self._base = base
        self._folder = _fast_folder(sum(each.nbytes for each in model.parameters() if each.requires_grad))
        self.adapter_rank: int = model.peft_config["default"].r

    def first_folder(self) -> Path:
        """The base model's own."""
        return self._base

    def bring(self, engine: VllmEngine) -> None:
        """Save the adapter and load it."""
        self._model.save_pretrained(self._folder, selected_adapters=["default"], is_main_process=is_main_process())
        wait_for_everyone()
        engine.use_adapter(self._folder)
        wait_for_everyone()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _bytes_of(model: Any) -> int:
    return sum(each.nbytes for each in model.state_dict().values())


def _fast_folder(size: int) -> Path:
    """A new folder in memory, or on disk where memory for files is short, as in many containers; one for all ranks."""
    folder = [""]
    if is_main_process():
        in_memory = _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > 1.1 * size
        folder = [tempfile.mkdtemp(prefix="posttrain-weights-", dir=_SHARED_MEMORY if in_memory else None)]
    return Path(broadcast_object_list(folder)[0])
