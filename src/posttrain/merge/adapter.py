"""Read a LoRA adapter's folder, and find the weights that it changes.

The base model is built on torch's meta device and wrapped by PEFT, exactly as when the adapter is loaded. What PEFT
wrapped, with which rank and scale, what it ties, and its tensors' names in the file are then read off the result, so
no PEFT rule is repeated here, and it costs no memory.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper, TrainableTokensWrapper
from transformers import AutoModelForCausalLM, PreTrainedConfig

from posttrain.base.text import first_line
from posttrain.errors import ModelError
from posttrain.models.tokens import extend_model
from posttrain.models.weights.outermost import outermost
from posttrain.models.weights.tensor_files import StoredTensor, stored_tensors

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

# Adapter initialisations that also change the base weights, so that the saved base is not the one that the adapter was
# trained on.
_CHANGES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class Adapter:
    """An adapter's config, and its tensors by their names in the file."""

    config: LoraConfig
    tensors: dict[str, StoredTensor]


def open_adapter(folder: Path) -> Adapter:
    """Open the adapter in `folder`.

    Raises:
        ModelError: there is none, or it is of a kind that cannot be folded into weights.
    """
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise ModelError(f"{folder} has no {name}, so it is not a LoRA adapter that can be merged")
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"cannot read {folder / CONFIG_FILE}: {error}") from error
    if not isinstance(config, LoraConfig):
        raise ModelError(f"the adapter in {folder} is of type {config.peft_type}; only LoRA can be merged")
    start = config.init_lora_weights
    if isinstance(start, str) and start.startswith(_CHANGES_THE_BASE):
        raise ModelError(
            f"the adapter in {folder} was initialised with {start}, which also changed the base weights; save it with "
            "PEFT's path_initial_model_for_weight_conversion and merge the result"
        )
    return Adapter(config, stored_tensors(folder / WEIGHTS_FILE))


BASE_WEIGHTS = ("base_layer.weight", "token_adapter.base_layer.weight")
"""The names in PEFT's modules of the weight that they wrap and change."""

_PREFIX = "base_model.model."
_INNER = "base_layer."


@dataclass(frozen=True)
class Site:
    """One of PEFT's modules, on the meta device; `tensors` are its parameters and their names in the file."""

    module: torch.nn.Module
    tensors: dict[str, str]


@dataclass(frozen=True)
class Outline:
    """The base model's parameters and what an adapter does to them, all by parameter name.

    `sites` are the modules that PEFT wrapped, `parameters` the parameters that it wrapped one by one, such as those of
    experts. `model` is the base on the meta device, within PEFT's modules. `base_copies` has the names in the adapter's
    file of base weights saved with it: PEFT saves the embeddings too if the vocabulary grew or an embedding is adapted.
    `ties` says whether the base also uses `embedding` as its `head`,
    `stays_tied` whether it still does under the adapter.
    """

    shapes: dict[str, tuple[int, ...]]
    prefix: str
    sites: dict[str, Site]
    parameters: dict[str, Site]
    model: Any
    base_copies: dict[str, str]
    embedding: str
    head: str | None
    ties: bool
    stays_tied: bool


def adapter_outline(
    base: PreTrainedConfig,
    adapter: LoraConfig,
    new_ids: Sequence[int],
    stored: dict[str, tuple[int, ...]],
    *,
    trust_remote_code: bool = False,
) -> Outline:
    """The outline of `base` under `adapter`, whose file holds tensors of the shapes in `stored`.

    Raises:
        ModelError: the adapter does not fit the model, or the file does not fit the adapter's config.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(base, trust_remote_code=trust_remote_code)
    extend_model(model, new_ids)
    names = {id(module): name for name, module in model.named_modules()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    ties = head is not None and head.weight is embedding.weight
    adapted = _wrap(model, adapter)
    return Outline(
        shapes={name: tuple(parameter.shape) for name, parameter in parameters.items()},
        prefix=model.base_model_prefix,
        **_sites(adapted, set(parameters), stored),
        model=model,
        embedding=f"{names[id(embedding)]}.weight",
        head=f"{names[id(head)]}.weight" if head is not None else None,
        ties=ties,
        stays_tied=ties and _keeps_tied(model, adapter),
    )


def _wrap(model: Any, adapter: LoraConfig) -> Any:
    try:
        with warnings.catch_warnings(), torch.device("meta"):
            # PEFT's advice on training and merging does not apply to a model without weights.
            warnings.simplefilter("ignore")
            return get_peft_model(model, adapter)
    except ValueError as error:
        raise ModelError(f"the adapter does not fit this model: {first_line(error)}") from error


def _sites(adapted: Any, parameters: set[str], stored: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The keyword arguments `sites`, `parameters` and `base_copies`, from what PEFT would save for this model."""
    own = {key: tuple(value.shape) for key, value in adapted.state_dict().items()}
    # Given names in place of tensors, PEFT returns the parameter's name for each name in the file.
    names: Any = {key: key for key in own}
    required: dict[str, Any] = get_peft_model_state_dict(adapted, state_dict=names, save_embedding_layers=False)
    possible: dict[str, Any] = (
        get_peft_model_state_dict(adapted, state_dict=names, save_embedding_layers=True) | required
    )
    _require_same_tensors(required, possible, stored, own)
    modules = outermost(adapted.base_model.model, (BaseTunerLayer, AuxiliaryTrainingWrapper))
    wrappers = {name: _nested(module) for name, module in modules.items() if isinstance(module, ParamWrapper)}
    sites = {f"{name}.weight": Site(module, {}) for name, module in modules.items() if name not in wrappers}
    alone = {f"{name}.{each.parameter_name}": Site(each, {}) for name, many in wrappers.items() for each in many}
    base_copies: dict[str, str] = {}
    for in_file, key in possible.items():
        if in_file not in stored:
            continue
        parameter = key.removeprefix(_PREFIX)
        owner = next((name for name in modules if parameter.startswith(f"{name}.")), None)
        inner = parameter.removeprefix(f"{owner}.")
        if owner is None and parameter in parameters:
            base_copies[parameter] = in_file
        elif inner in BASE_WEIGHTS:
            base_copies[f"{owner}.weight"] = in_file
        elif owner in wrappers:
            depth = inner.count(_INNER)
            wrapper = wrappers[owner][depth]
            alone[f"{owner}.{wrapper.parameter_name}"].tensors[inner.removeprefix(_INNER * depth)] = in_file
        elif owner is not None and not inner.startswith("original_module.") and in_file in required:
            sites[f"{owner}.weight"].tensors[inner] = in_file
    return {"sites": sites, "parameters": alone, "base_copies": base_copies}


def _nested(module: Any) -> list[ParamWrapper]:
    """The wrappers of the parameters of one module, the outermost first."""
    return [module, *_nested(module.base_layer)] if isinstance(module, ParamWrapper) else []


def _require_same_tensors(
    required: dict[str, str],
    possible: dict[str, str],
    stored: dict[str, tuple[int, ...]],
    own: dict[str, tuple[int, ...]],
) -> None:
    unknown = sorted(stored.keys() - possible.keys())
    if unknown:
        raise ModelError(f"the adapter's file has tensors that this model has no place for: {_some(unknown)}")
    missing = sorted(required.keys() - stored.keys())
    if missing:
        raise ModelError(f"the adapter's file lacks {_some(missing)}, which its config requires")
    for name, shape in stored.items():
        if shape != own[possible[name]]:
            raise ModelError(
                f"{name} in the adapter's file has shape {shape}, but this model needs {own[possible[name]]}"
            )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _keeps_tied(model: Any, adapter: LoraConfig) -> bool:
    """Whether embedding and head, which the base ties, are still one matrix under the adapter."""
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if isinstance(embedding, ModulesToSaveWrapper) and isinstance(head, ModulesToSaveWrapper):
        return embedding.weight is head.weight
    if isinstance(embedding, TrainableTokensWrapper) and isinstance(head, TrainableTokensWrapper):
        return head.token_adapter.tied_adapter is embedding.token_adapter
    wrapped = [isinstance(layer, BaseTunerLayer | AuxiliaryTrainingWrapper) for layer in (embedding, head)]
    if not any(wrapped):
        return True
    # PEFT gives the head the embedding's A and B, swapped. DoRA then scales each by a vector of its own.
    swapped = bool(getattr(adapter, "target_modules_to_tie", None)) and not adapter.use_dora
    return all(wrapped) and swapped
