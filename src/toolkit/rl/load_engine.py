"""Choose and make the engine for rollouts."""

from pathlib import Path
from typing import Literal

from toolkit.core.models.base import LoadedModel
from toolkit.errors import ConfigError
from toolkit.inference.hf import HfEngine
from toolkit.rl.config.rl import RLConfig
from toolkit.rl.engines import RolloutEngine, TrainingModelEngine


def rollout_engine(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int]) -> RolloutEngine:
    """The engine that `rollout.engine` names, for the model that is trained; `end_ids` end a completion.

    Where several processes train together, they must have found each other before: vLLM would make a group of its own.

    Raises:
        ConfigError: vLLM is not installed, or cannot take the adapter alone.
        ModelError: vLLM cannot load the model, or the model cannot hold a prompt and its completion.
    """
    if config.rollout.engine == "vllm":
        return _vllm(config, loaded, end_ids)
    engine = HfEngine(loaded.model, loaded.tokenizer, end_ids, config.rollout.batch_size)
    return TrainingModelEngine(loaded.model, engine, loaded.compute_dtype)


def chosen_sync(config: RLConfig, loaded: LoadedModel) -> Literal["adapter", "weights"]:
    """`rollout.sync`, with `auto` resolved: the adapter alone on CUDA, where vLLM can use it as it is.

    On a CPU vLLM's LoRA kernels take several times as long as writing and reading all weights of a small model.
    """
    from toolkit.inference.vllm_limits import unusable_parts

    wanted = config.rollout.sync
    if wanted == "weights":
        return "weights"
    adapters = getattr(loaded.model, "peft_config", None)
    hindrance = "there is no adapter: all weights are trained"
    if adapters is not None:
        hindrance = ", ".join(unusable_parts(adapters["default"].to_dict()))
    if wanted == "auto":
        return "adapter" if loaded.device.type == "cuda" and not hindrance else "weights"
    if hindrance:
        raise ConfigError(f"rollout.sync: adapter is not possible with vLLM ({hindrance}); give weights, or auto")
    return "adapter"


def _vllm(config: RLConfig, loaded: LoadedModel, end_ids: frozenset[int]) -> RolloutEngine:
    from toolkit.core.models.hf import model_files
    from toolkit.inference.vllm_load import VllmOptions
    from toolkit.rl.vllm_engine import VllmRolloutEngine
    from toolkit.rl.weight_sync import AdapterAlone, MergedWeights

    if chosen_sync(config, loaded) == "adapter":
        sync = AdapterAlone(loaded.model, Path(model_files(config.model)))
    else:
        sync = MergedWeights(loaded)
    rollout = config.rollout
    new_tokens = [section.max_new_tokens for section in (rollout, config.evaluation) if section is not None]
    options = VllmOptions(
        dtype=str(loaded.compute_dtype).removeprefix("torch."),
        max_length=rollout.max_prompt_tokens + max(new_tokens),
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        adapter_rank=sync.adapter_rank,
        seed_each=False,
    )
    return VllmRolloutEngine(sync, end_ids, options)
