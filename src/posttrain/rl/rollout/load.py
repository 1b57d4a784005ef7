"""Choose and make the engine for rollouts."""

import os
from pathlib import Path
from typing import Literal

from posttrain.errors import ConfigError
from posttrain.inference.hf import HfEngine
from posttrain.models.backend import LoadedModel
from posttrain.rl.config.rl import RLConfig
from posttrain.rl.rollout.engines import RolloutEngine, TrainingModelEngine


def rollout_engine(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> RolloutEngine:
    """The engine that `rollout.engine` names, for the model that is trained in the run directory `run`.

    Where several processes train together, they must have found each other before: vLLM would make a group of its own.

    Args:
        end_ids: tokens that end a completion.

    Raises:
        ConfigError: vLLM is not installed, cannot take the adapter alone, or the processes are on several machines.
        ModelError: vLLM cannot load the model, or the model cannot hold a prompt and its completion.
    """
    if config.rollout.engine == "vllm":
        return _vllm(config, loaded, end_ids, run)
    engine = HfEngine(loaded.model, loaded.tokenizer, end_ids, config.rollout.batch_size)
    return TrainingModelEngine(loaded.model, engine, loaded.compute_dtype)


def chosen_sync(config: RLConfig, loaded: LoadedModel) -> Literal["adapter", "weights"]:
    """`rollout.sync`, with `auto` resolved: the adapter alone on CUDA, where vLLM can use it as it is.

    On a CPU vLLM's LoRA kernels take several times as long as writing and reading all weights of a small model.
    """
    from posttrain.inference.vllm import unusable_parts

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


def _vllm(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int], run: Path) -> RolloutEngine:
    from posttrain.inference.vllm_load import VllmOptions
    from posttrain.models.loading import model_files
    from posttrain.rl.rollout.vllm import VllmRolloutEngine
    from posttrain.rl.rollout.weight_sync import AdapterAlone, MergedWeights

    _require_one_machine()
    if config.rollout.sleep and loaded.device.type != "cuda":
        raise ConfigError("rollout.sleep: vLLM can leave its memory to others on CUDA devices only; set it to false")
    alone = chosen_sync(config, loaded) == "adapter"
    sync = AdapterAlone(loaded.model, Path(model_files(config.model)), run) if alone else MergedWeights(loaded, run)
    rollout = config.rollout
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
    return VllmRolloutEngine(sync, end_ids, options)


def _require_one_machine() -> None:
    here, everywhere = (int(os.environ.get(name, 1)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if here != everywhere:
        raise ConfigError(
            f"rollout.engine: vllm takes the weights through the memory of one machine, and only {here} of the "
            f"{everywhere} processes are on this one; use engine: hf"
        )
