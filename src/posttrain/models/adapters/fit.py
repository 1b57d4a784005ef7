"""Compare an adapter with the model that it is for, by the shapes in their files, before either is loaded."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.errors import ModelError
from posttrain.models.location import conversion_folder, locate_model, require_no_pickle, weights_folder

if TYPE_CHECKING:
    from posttrain.config.sections.model import ModelConfig

Shapes = dict[str, tuple[int, ...]]
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # PEFT's, before the module's own name
_NUMBER = re.compile(r"\.\d+\.")
# Quantised weights are stored in other shapes than their layers'.
_PLAIN = ("F64", "F32", "F16", "BF16")


def require_adapter_fits(adapter: Path, model: "ModelConfig") -> None:
    """Refuse an adapter whose weights have other shapes than the model's layers, or layers that the model lacks.

    Only layers in numbered blocks are compared, since added tokens change embedding and head; and only those that the
    model's files have under the same name. What cannot be told from files, PEFT tells when it loads the adapter.

    Raises:
        ModelError: it does not fit, or is no LoRA adapter with safetensors.
    """
    if not (adapter / _CONFIG).is_file():
        raise ModelError(f"{model.key}.adapter: {adapter} has no {_CONFIG}, so it is not a LoRA adapter")
    require_no_pickle(adapter, f"{model.key}.adapter")
    if not (adapter / _WEIGHTS).is_file():
        raise ModelError(f"{model.key}.adapter: {adapter} has no {_WEIGHTS}, so there are no weights to load")
    if find_spec("safetensors") is None:  # the base install, for dry runs
        return
    described = _described(adapter)
    pairs = _lora_shapes(_shapes(adapter / _WEIGHTS))
    problem = _other_rank(described, pairs) or _misfit(pairs, _base_shapes(model))
    if problem:
        made_for = described.get("base_model_name_or_path")
        source = f", made for {made_for}" if made_for else ""
        raise ModelError(
            f"{model.key}.adapter: the adapter in {adapter} (rank {described.get('r')}{source}) does not fit "
            f"{model.name}: {problem}"
        )


def _described(adapter: Path) -> dict[str, Any]:
    """The adapter's own config; PEFT tells what is wrong with it."""
    try:
        found = json.loads((adapter / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _lora_shapes(stored: Shapes) -> dict[str, tuple[int, int, int, int]]:
    """Inputs, rank of A, rank of B and outputs of each adapted layer in a numbered block, by its name."""
    found = {}
    for name, a in stored.items():
        layer, dot, _ = name.removeprefix(_PREFIX).partition(".lora_A.")
        b = stored.get(name.replace(".lora_A.", ".lora_B."))
        if dot and b is not None and len(a) == len(b) == 2 and _NUMBER.search(layer):
            found[layer] = (a[1], a[0], b[1], b[0])
    return found


def _other_rank(described: dict[str, Any], pairs: dict[str, tuple[int, int, int, int]]) -> str:
    """Where the ranks of the weights are not what the config says; empty if they are, or vary by layer."""
    rank = described.get("r")
    # Adapters of parameters, such as those of experts, have the ranks of all experts in one matrix.
    if not isinstance(rank, int) or described.get("rank_pattern") or described.get("target_parameters"):
        return ""
    for layer, (_, rank_a, rank_b, _) in pairs.items():
        if not rank_a == rank_b == rank:
            return f"the weights of {layer} have rank {rank_a if rank_a != rank else rank_b}; is {_CONFIG} its own?"
    return ""


def _misfit(pairs: dict[str, tuple[int, int, int, int]], base: Shapes) -> str:
    """The first layer that the model has not, or in another shape; empty if there is none."""
    layers = {name.rpartition(".")[0] for name in base}
    kinds = {_NUMBER.sub(".N.", name) for name in layers}
    for layer, (inputs, _, _, outputs) in pairs.items():
        if layer not in layers and _NUMBER.sub(".N.", layer) in kinds:
            return f"the model has no {layer}"
        shape = base.get(f"{layer}.weight", ())
        if len(shape) == 2 and sorted(shape) != sorted((outputs, inputs)):  # some models store it transposed
            here = f"{shape[0]} × {shape[1]}"
            return f"{layer} maps {inputs} to {outputs} in the adapter, and has a weight of {here} in the model"
    return ""


def _base_shapes(model: "ModelConfig") -> Shapes:
    """Shapes of the model's weights; empty if its files are not on this machine yet, or cannot be read."""
    location = locate_model(model.name, model.key)
    folder = conversion_folder(Path(location.path)) if location.kind == "gguf" else weights_folder(model)
    if folder is None or not folder.is_dir():
        return {}
    try:
        return {name: shape for file in sorted(folder.glob("*.safetensors")) for name, shape in _shapes(file).items()}
    except ModelError:
        return {}  # loading tells it


def _shapes(file: Path) -> Shapes:
    """Shapes of the tensors of a file, () of those that are not floating-point; ModelError if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as weights:
            slices = {name: weights.get_slice(name) for name in weights.keys()}  # noqa: SIM118  # it is no mapping
            return {
                name: tuple(each.get_shape()) if each.get_dtype() in _PLAIN else () for name, each in slices.items()
            }
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{file} cannot be read as safetensors: {error}") from error
