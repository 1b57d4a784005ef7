"""Config section `parallel`: how the processes of a run share a model."""

from collections.abc import Mapping
from typing import Any, Literal

from posttrain.base.processes import process_count
from posttrain.config.sections.optim.optimizers import OPTIMIZERS, AnyOptimizer, OwnOptimizer
from posttrain.config.strict import StrictModel


class ParallelConfig(StrictModel):
    """Several processes that train together, started by `torchrun`; with one process it has no effect."""

    kind: Literal["ddp", "fsdp2"] = "ddp"
    """`ddp`: each process has the whole model. `fsdp2`: each has a share of every weight, gradient and optimizer state,
    and a layer's weights are gathered while it is computed: less memory, more communication."""

    @property
    def shards(self) -> bool:
        """Whether the model is to be sharded over the processes of this launch."""
        return self.kind == "fsdp2" and process_count() > 1


def trains_a_copy(sections: Mapping[str, Any]) -> bool:
    """Whether a frozen model of the start needs a copy of what is trained, as there is no base without it."""
    model, lora = sections.get("model"), sections.get("lora")
    return lora is None or (model is not None and model.adapter is not None)


def require_parallel_fits(
    parallel: ParallelConfig, sections: Mapping[str, Any], others: Mapping[str, bool] | None = None
) -> ParallelConfig:
    """Raise ValueError if a setting does not go together with `fsdp2`.

    Args:
        sections: those of the config that are valid.
        others: whether other settings, which do not go together with it, are set, by their names and values.
    """
    if parallel.kind != "fsdp2":
        return parallel
    model, lora, training = (sections.get(name) for name in ("model", "lora", "training"))
    optimizer: AnyOptimizer | None = None if training is None else training.optimizer
    refused = {
        "model.backend: unsloth": model is not None and model.backend == "unsloth",
        f"model.quantization: {model and model.quantization}": model is not None and model.quantization != "none",
        f"lora.init: {lora and lora.init}": lora is not None and lora.init is not None,
        "training.compile: true": training is not None and training.compile is True,
        "training.offload_activations: true": training is not None and training.offload_activations,
        "training.offload_embeddings: true": training is not None and training.offload_embeddings,
        f"training.optimizer: {optimizer}": _mixes_weights(optimizer),
        **(others or {}),
    }
    for setting, is_set in refused.items():
        if is_set:
            raise ValueError(f"kind: fsdp2 does not go together with {setting}; change that, or use ddp")
    return parallel


def _mixes_weights(optimizer: AnyOptimizer | None) -> bool:
    """Whether what an optimizer of the table does to a weight depends on others, which may be another process's."""
    return not (optimizer is None or isinstance(optimizer, OwnOptimizer) or OPTIMIZERS[optimizer].is_elementwise)
