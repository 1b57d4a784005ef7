"""Rollouts by vLLM in the training process, with weights that are synchronised.

After optimizer steps it gets all weights with the adapter folded in, or the adapter alone. Where several processes
train together, on one machine, the first writes for all.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, Protocol

from accelerate.utils import wait_for_everyone

from posttrain.base.processes import is_main_process
from posttrain.errors import ConfigError
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.inference.vllm import VllmEngine, unusable_parts
from posttrain.inference.vllm_load import VllmOptions
from posttrain.inference.vllm_weights import write_merged_weights
from posttrain.models.backend import LoadedModel
from posttrain.models.hf import model_files
from posttrain.rl.config import RLConfig
from posttrain.train.memory import Phase, during


def start(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> "VllmRolloutEngine":
    """vLLM for the model in `loaded`, which is trained in the run directory `run`; `end_ids` end a completion.

    Raises:
        ConfigError: vLLM is not installed, cannot take the adapter alone, or the processes are on several machines.
        ModelError: vLLM cannot load the model, or the model cannot hold a prompt and its completion.
    """
    _require_one_machine()
    rollout = config.rollout
    if rollout.sleep and loaded.device.type != "cuda":
        raise ConfigError("rollout.sleep: vLLM can leave its memory to others on CUDA devices only; set it to false")
    alone = chosen_sync(config, loaded) == "adapter"
    sync = AdapterAlone(loaded.model, Path(model_files(config.model)), run) if alone else MergedWeights(loaded, run)
    new_tokens = [section.max_new_tokens for section in (rollout, config.evaluation) if section is not None]
    options = VllmOptions(
        dtype=str(loaded.compute_dtype).removeprefix("torch."),
        max_length=rollout.max_prompt_tokens + max(new_tokens),
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        sleeps=rollout.sleep,
        adapter_rank=sync.adapter_rank,
        revision=config.model.revision if alone else None,
        trust_remote_code=config.model.trust_remote_code,
        seed_each=False,
        eager=chosen_eager(config, loaded),
    )
    with during(Phase.ENGINE, "while vLLM was started"):
        return VllmRolloutEngine(sync, end_ids, options)


def chosen_sync(config: RLConfig, loaded: LoadedModel) -> Literal["adapter", "weights"]:
    """`rollout.sync`, with `auto` resolved: the adapter alone on CUDA, where vLLM can use it as it is.

    On a CPU vLLM's LoRA kernels take several times as long as writing and reading all weights of a small model.
    """
    wanted = config.rollout.sync
    if wanted == "weights":
        return "weights"
    adapters = getattr(loaded.model, "peft_config", None)
    hindrance = "there is no adapter: all weights are trained"
    if adapters is not None:
        new_tokens = ["new tokens"] if loaded.new_token_ids else []
        hindrance = ", ".join([*unusable_parts(adapters["default"].to_dict()), *new_tokens])
    if wanted == "auto":
        return "adapter" if loaded.device.type == "cuda" and not hindrance else "weights"
    if hindrance:
        raise ConfigError(f"rollout.sync: adapter is not possible with vLLM ({hindrance}); give weights, or auto")
    return "adapter"


def chosen_eager(config: RLConfig, loaded: LoadedModel) -> bool | None:
    """`rollout.compile` as `VllmOptions.eager`."""
    on_cpu = loaded.device.type == "cpu"
    if config.rollout.compile == "auto":
        return False if on_cpu and loaded.compiled else None
    return False if config.rollout.compile else (None if on_cpu else True)


def _require_one_machine() -> None:
    here, everywhere = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if here != everywhere:
        raise ConfigError(
            f"rollout.engine: vllm takes the weights through the memory of one machine, and only {here} of the "
            f"{everywhere} processes are on this one; use engine: hf"
        )


class VllmRolloutEngine:
    """A RolloutEngine that gets the weights anew when there were optimizer steps since.

    Where `options.sleeps` it has a CUDA device's memory only while it generates. It wakes up before weights are
    brought: asleep they have no place.

    Raises:
        ConfigError: vLLM is not installed, or has no room for adapters of the wanted rank.
        ModelError: vLLM cannot load the model, or the model cannot hold a prompt and its completion.
    """

    def __init__(self, sync: "WeightSync", end_ids: frozenset[int], options: VllmOptions) -> None:
        self._sync = sync
        self._step: int | None = None
        self._sleeps = options.sleeps
        try:
            self._engine = VllmEngine(sync.first_folder(), end_ids, options)
            sync.release()
            self._rest()
        except BaseException:
            sync.close()
            raise

    def update(self, step: int) -> None:
        """Bring the weights over, unless those of this step are there."""
        if step != self._step:
            with during(Phase.ENGINE, f"while vLLM got the weights after optimizer step {step}"):
                self._engine.wake_up()
                self._sync.bring(self._engine)
            self._step = step

    def complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """All completions of all requests."""
        self._engine.wake_up()
        completions = dict(self._engine.generate(requests, sampling))
        self._rest()
        return completions

    def close(self) -> None:
        """Stop vLLM, and remove what was written for it."""
        try:
            self._engine.close()
        finally:
            self._sync.close()

    def _rest(self) -> None:
        if self._sleeps:
            self._engine.sleep()


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
