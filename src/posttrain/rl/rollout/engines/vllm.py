"""Set up vLLM for rollouts: what it is sent after each step, and its options."""

from typing import Literal

from posttrain.errors import ConfigError
from posttrain.inference.vllm import unusable_parts
from posttrain.inference.vllm_load import VllmOptions
from posttrain.inference.weight_sync import AdapterAlone, MergedWeights, Weights
from posttrain.models.backend import LoadedModel
from posttrain.rl.config import RLConfig


def chosen_weights(config: RLConfig, loaded: LoadedModel) -> Weights:
    """What vLLM is sent after each step.

    Raises:
        ConfigError: vLLM cannot sleep on this device or take the adapter alone.
    """
    if config.rollout.sleep and loaded.device.type != "cuda":
        raise ConfigError("rollout.sleep: vLLM can release its memory only on CUDA devices; set it to false")
    return AdapterAlone(loaded.model) if chosen_sync(config, loaded) == "adapter" else MergedWeights(loaded)


def vllm_options(config: RLConfig, loaded: LoadedModel, adapter_rank: int) -> VllmOptions:
    """vLLM's options for a config; `adapter_rank` is 0 if it gets all weights."""
    rollout = config.rollout
    return VllmOptions(
        dtype=str(loaded.compute_dtype).removeprefix("torch."),
        max_length=rollout.max_prompt_tokens + config.longest_completion,
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        sleeps=rollout.sleep,
        adapter_rank=adapter_rank,
        revision=config.model.revision if adapter_rank else None,
        trust_remote_code=config.model.trust_remote_code,
        seed_each=False,
        eager=chosen_eager(config, loaded),
    )


def chosen_sync(config: RLConfig, loaded: LoadedModel) -> Literal["adapter", "weights"]:
    """`rollout.sync` with `auto` resolved: the adapter alone on CUDA if vLLM can use it as it is, else all weights.

    On a CPU, vLLM's LoRA kernels take several times as long as writing and reading all weights of a small model.
    """
    wanted = config.rollout.sync
    if wanted == "weights":
        return "weights"
    hindrance = adapter_hindrance(loaded)
    if wanted == "auto":
        return "adapter" if loaded.device.type == "cuda" and not hindrance else "weights"
    if hindrance:
        raise ConfigError(f"rollout.sync: adapter is not possible with vLLM ({hindrance}); use weights or auto")
    return "adapter"


def adapter_hindrance(loaded: LoadedModel) -> str:
    """Why vLLM cannot use the adapter in training as it is; empty if it can."""
    adapters = getattr(loaded.model, "peft_config", None)
    if adapters is None:
        return "there is no adapter: all weights are trained"
    new_tokens = ["new tokens"] if loaded.new_token_ids else []
    return ", ".join([*unusable_parts(adapters["default"].to_dict()), *new_tokens])


def chosen_eager(config: RLConfig, loaded: LoadedModel) -> bool | None:
    """`rollout.compile` as `VllmOptions.eager`."""
    on_cpu = loaded.device.type == "cpu"
    if config.rollout.compile == "auto":
        return False if on_cpu and loaded.compiled else None
    return False if config.rollout.compile else (None if on_cpu else True)
