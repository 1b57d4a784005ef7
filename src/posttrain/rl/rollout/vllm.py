"""Generate rollouts with vLLM in the training process; it gets all weights or the adapter after optimizer steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from posttrain.errors import ConfigError
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.inference.vllm import VllmEngine, unusable_parts
from posttrain.inference.vllm_load import VllmOptions
from posttrain.inference.weight_sync import AdapterAlone, MergedWeights, require_one_machine
from posttrain.models.backend import LoadedModel
from posttrain.models.hf import model_files
from posttrain.rl.config import RLConfig
from posttrain.train.memory import Phase, during


def start(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> "VllmRolloutEngine":
    """Start vLLM for the model in `loaded`, trained in the run directory `run`; `end_ids` end a completion.

    Raises:
        ConfigError: vLLM is not installed, cannot sleep on this device or take the adapter alone, or the processes are
            on several machines.
        ModelError: vLLM cannot load the model, or the model cannot hold a prompt and its completion.
    """
    rollout = config.rollout
    require_one_machine(rollout.engine)
    if rollout.sleep and loaded.device.type != "cuda":
        raise ConfigError("rollout.sleep: vLLM can release its memory only on CUDA devices; set it to false")
    alone = chosen_sync(config, loaded) == "adapter"
    sync = AdapterAlone(loaded.model, Path(model_files(config.model)), run) if alone else MergedWeights(loaded, run)
    options = VllmOptions(
        dtype=str(loaded.compute_dtype).removeprefix("torch."),
        max_length=rollout.max_prompt_tokens + config.longest_completion,
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
    """`rollout.sync` with `auto` resolved: the adapter alone on CUDA if vLLM can use it as it is, else all weights.

    On a CPU, vLLM's LoRA kernels take several times as long as writing and reading all weights of a small model.
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
        raise ConfigError(f"rollout.sync: adapter is not possible with vLLM ({hindrance}); use weights or auto")
    return "adapter"


def chosen_eager(config: RLConfig, loaded: LoadedModel) -> bool | None:
    """`rollout.compile` as `VllmOptions.eager`."""
    on_cpu = loaded.device.type == "cpu"
    if config.rollout.compile == "auto":
        return False if on_cpu and loaded.compiled else None
    return False if config.rollout.compile else (None if on_cpu else True)


class VllmRolloutEngine:
    """A RolloutEngine whose weights are reloaded after further optimizer steps.

    With `options.sleeps` it holds a CUDA device's memory only while it generates. It wakes up before weights are
    loaded, since it has no memory for them while asleep.

    Raises:
        ConfigError: vLLM is not installed, or has no room for adapters of the wanted rank.
        ModelError: vLLM cannot load the model, or the model cannot hold a prompt and its completion.
    """

    def __init__(self, sync: AdapterAlone | MergedWeights, end_ids: frozenset[int], options: VllmOptions) -> None:
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
        """Load the weights, unless those of this step are already loaded."""
        if step != self._step:
            with during(Phase.ENGINE, f"while vLLM received the weights after optimizer step {step}"):
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
        """Stop vLLM, and remove the files written for it."""
        try:
            self._engine.close()
        finally:
            self._sync.close()

    def _rest(self) -> None:
        if self._sleeps:
            self._engine.sleep()
