"""Create the optimizers of a run over its trained weights."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from posttrain.base.user_code import error_in_words, import_module
from posttrain.config.sections.optim.optimizers import OPTIMIZERS, OptimizerName, OwnOptimizer
from posttrain.config.sections.training import TrainingConfig
from posttrain.errors import ConfigError
from posttrain.models.backend import training_device
from posttrain.models.weights.sharding import share

# What the optimizers of the table call what keys of the config set, besides the learning rate.
_SET = ("betas", "eps", "momentum", "weight_decay")


def make_optimizers(model: nn.Module, training: TrainingConfig) -> list[torch.optim.Optimizer]:
    """What the config names, over the trainable parameters; the learning rate is set at each step.

    Weight decay applies to matrices only: biases and norm weights have one dimension and are exempt. There are two
    optimizers with `muon`, which takes only matrices, and is not for embeddings and heads
    (https://kellerjordan.github.io/posts/muon): the second is AdamW.

    With `lora_plus_ratio` λ, LoRA's matrices B have learning rate η_B = λ·η_A (LoRA+, arXiv:2402.12354): their groups
    have it as `lr_ratio`.

    Raises:
        ConfigError: the class is not there, or does not take the arguments or the weights, or not those of which each
            process has a share; or there is no matrix B.
    """
    ratios = _rate_ratios(model, training.lora_plus_ratio)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if isinstance(training.optimizer, OwnOptimizer) and isinstance(trained[0], DTensor):
        _require_takes_shares(training.optimizer, trained[0], training)
    if isinstance(training.optimizer, str) and OPTIMIZERS[training.optimizer].package == "bitsandbytes":
        _keep_states_of_embeddings(model)
    if training.optimizer != "muon":
        return [_over(training.optimizer, trained, training, ratios)]
    outside = {id(parameter) for parameter in _vocabulary(model)}
    matrices = [each for each in trained if each.ndim == 2 and id(each) not in outside]
    taken = {id(each) for each in matrices}
    others = [each for each in trained if id(each) not in taken]
    parts: list[tuple[OptimizerName, list[nn.Parameter]]] = [("muon", matrices), ("adamw", others)]
    return [_over(name, each, training, ratios) for name, each in parts if each]


def load_states(optimizer: torch.optim.Optimizer, states: dict[str, Any], training: TrainingConfig) -> None:
    """Give an optimizer of a resumed run its states; what the config sets stays, since it may have changed since.

    One's own class may change its arguments as it goes, and the config's may not change within a run: its are loaded.
    """
    own = isinstance(training.optimizer, OwnOptimizer)
    kept = [{} if own else {key: group[key] for key in _SET if key in group} for group in optimizer.param_groups]
    optimizer.load_state_dict(states)
    for group, values in zip(optimizer.param_groups, kept, strict=True):
        group.update(values)


def averages_weights(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has `eval` and `train`, which put an average into the weights and take it out again."""
    return all(callable(getattr(optimizer, name, None)) for name in ("eval", "train"))


def require_class(training: TrainingConfig, start: str | None = None) -> torch.optim.Optimizer:
    """The optimizer over one made-up matrix, before any model is loaded; one's own updates it once.

    `start` is `lora.init`, which has weights that get no gradient and must not change.

    Raises:
        ConfigError: as `make_optimizers`; it takes no plain update; or it changes such weights.
    """
    if not isinstance(training.optimizer, OwnOptimizer):
        return _over(training.optimizer, [nn.Parameter(torch.zeros(2, 2))], training)
    path = training.optimizer.class_
    matrix = nn.Parameter(torch.ones(2, 2, device=training_device()))
    optimizer = _over(training.optimizer, [matrix], training)
    matrix.grad = torch.eye(2, device=matrix.device)
    _try_step(optimizer, f"training.optimizer: {path} cannot train")
    if start is not None and matrix[0, 1] != 1:
        raise ConfigError(
            f"training.optimizer: {path} changes weights that get no gradient, which lora.init: {start} keeps as they "
            "are; give it weight_decay: 0 if it takes that, or set init to null"
        )
    return optimizer


def _require_takes_shares(kind: OwnOptimizer, weight: DTensor, training: TrainingConfig) -> None:
    """Raise ConfigError if the class cannot update, or keeps no shares of, a matrix that is shared as `weight` is."""
    values = torch.ones(2 * weight.device_mesh.size(), 2)
    matrix = nn.Parameter(share(values, weight))
    matrix.grad = share(values, weight)
    optimizer = _over(kind, [matrix], training)
    instead = "set parallel.kind: ddp"
    why = f"training.optimizer: {kind.class_} cannot train a matrix of which each process has a share ({instead})"
    _try_step(optimizer, why)
    for name, state in optimizer.state[matrix].items():
        if isinstance(state, DTensor) and state.shape != matrix.shape:
            raise ConfigError(
                f"training.optimizer: {kind.class_} has a state {name} that is not as large as its weight, so it "
                f"cannot be saved in shares; {instead}"
            )


def _try_step(optimizer: torch.optim.Optimizer, why: str) -> None:
    """Update once; a failure is a ConfigError that begins with `why`."""
    try:
        if averages_weights(optimizer):
            optimizer.train()  # type: ignore[attr-defined]
        optimizer.step()
    except Exception as error:  # whatever the class raises
        raise ConfigError(f"{why}: {error_in_words(error)}") from error


def _over(
    kind: OptimizerName | OwnOptimizer,
    weights: Sequence[nn.Parameter],
    training: TrainingConfig,
    ratios: Mapping[int, float] | None = None,
) -> torch.optim.Optimizer:
    """An optimizer over these weights; `ratios` are those of learning rates, by the ids of weights."""
    path = kind.class_ if isinstance(kind, OwnOptimizer) else OPTIMIZERS[kind].path
    arguments = dict(kind.arguments if isinstance(kind, OwnOptimizer) else _arguments(kind, training))
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for each in weights:
        is_matrix, ratio = each.ndim > 1, (ratios or {}).get(id(each), 1.0)
        decay = {} if is_matrix or "weight_decay" not in arguments else {"weight_decay": 0.0}
        faster = {} if ratio == 1 else {"lr_ratio": ratio}
        groups.setdefault((not is_matrix, ratio), {"params": [], **decay, **faster})["params"].append(each)
    optimizer = _class(path)
    try:
        return optimizer([groups[key] for key in sorted(groups)], lr=training.learning_rate, **arguments)
    except Exception as error:  # whatever the class raises
        names = ", ".join(name for name in inspect.signature(optimizer).parameters if name not in ("params", "lr"))
        raise ConfigError(
            f"training.optimizer: {path} cannot be created: {error_in_words(error)}; its arguments are {names}"
        ) from error


def _rate_ratios(model: nn.Module, ratio: float | None) -> dict[int, float]:
    if ratio is None:
        return {}
    # PEFT names them lora_B.<adapter>.weight, and lora_embedding_B.<adapter> in embeddings.
    found = {id(each): ratio for name, each in model.named_parameters() if re.search(r"\.lora_(embedding_)?B\.", name)}
    if not found:
        raise ConfigError("training.lora_plus_ratio: no LoRA matrix B is trained; leave it out")
    return found


def _arguments(name: OptimizerName, training: TrainingConfig) -> Mapping[str, Any]:
    """The arguments of an optimizer of the table."""
    traits = OPTIMIZERS[name]
    arguments = {"weight_decay": training.weight_decay, **traits.arguments}
    if "beta1" in traits.keys:
        arguments["betas"] = (training.beta1, training.beta2)
    if "epsilon" in traits.keys:
        arguments["eps"] = training.epsilon
    if "momentum" in traits.keys and training.momentum is not None:
        arguments["momentum"] = training.momentum
    if name == "muon":
        del arguments["betas"], arguments["eps"]  # those of the other weights' AdamW
    return arguments


def _class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name, None)
    except ConfigError as error:
        raise ConfigError(f"training.optimizer: {path}: {error}") from error
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise ConfigError(f"training.optimizer: {path} is not an optimizer of torch's interface")
    return found


def _keep_states_of_embeddings(model: nn.Module) -> None:
    import bitsandbytes  # pyright: ignore[reportMissingImports]  # installed where there is CUDA

    # 8-bit states of embeddings are unstable: https://huggingface.co/docs/bitsandbytes/optimizers.
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})


def _vocabulary(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of the embedding and the head."""
    for name in ("get_input_embeddings", "get_output_embeddings"):
        layer = getattr(model, name, lambda: None)()
        if layer is not None:
            yield from layer.parameters()
