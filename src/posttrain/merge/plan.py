"""Plan which tensors the merged model has, in which files, and how each is computed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from posttrain.errors import ModelError
from posttrain.merge.adapter import BASE_WEIGHTS, Adapter, Outline, Site
from posttrain.merge.parameters import ParameterChanges
from posttrain.models.tokens import extend_rows
from posttrain.models.weights.tensor_files import FLOATS, OutputTensor, StoredTensor

Plan = dict[str, list[OutputTensor]]
"""The tensors of each output file; the files are those of the base."""


@dataclass(frozen=True)
class Merger:
    """Makes the tensors of the merged model.

    `stored` has the base's tensors by parameter name, or by their name in the files if the model has no such parameter.
    """

    outline: Outline
    adapter: Adapter
    stored: dict[str, StoredTensor]
    new_ids: Sequence[int]

    def changes(self, parameter: str) -> bool:
        """Whether the merged tensor is not simply the stored one."""
        return (
            parameter in self.outline.sites
            or self._copy(parameter) is not None
            or (bool(self.new_ids) and parameter in self._vocabulary_weights())
            or self.outline.shapes[parameter] != self.stored_as(parameter).shape
        )

    def stored_as(self, parameter: str) -> StoredTensor:
        """The base's tensor for `parameter`, which may be stored under the name of the one it is tied to."""
        found = self.stored.get(parameter) or self.stored.get(self._tied_to(parameter) or "")
        if found is None:
            raise ModelError(f"the adapter changes {parameter}, which is missing from the base model's files")
        return found

    def merged(self, parameter: str, dtype: torch.dtype) -> torch.Tensor:
        """The value of `parameter` with the adapter folded in: computed in float32, rounded once."""
        site = self.outline.sites.get(parameter)
        if site is None:
            return _rounded(parameter, self._base(parameter), dtype)
        base = self._base(parameter) if base_name(site) else None
        tensors = {inner: self.adapter.tensors[name].read_float32() for inner, name in site.tensors.items()}
        try:
            return _rounded(parameter, merged_weight(site, base, tensors), dtype)
        except ModelError as error:
            raise ModelError(f"{parameter}: {error}") from error

    def _base(self, parameter: str) -> torch.Tensor:
        """The weight under the adapter, in float32: the copy saved with the adapter, or else the base's."""
        copy = self._copy(parameter)
        if copy is not None:
            return copy.read_float32()
        weight = self.stored_as(parameter).read_float32()
        if parameter in self._vocabulary_weights():
            return extend_rows(weight, self.new_ids)
        missing = self.outline.shapes[parameter][0] - weight.shape[0]
        # Only the head's bias can be shorter: transformers initialises the new tokens' biases to 0.
        return torch.nn.functional.pad(weight, (0, missing)) if missing else weight

    def _copy(self, parameter: str) -> StoredTensor | None:
        """The base weight saved with the adapter for `parameter` or the one it is tied to; None if there is none."""
        copies = self.outline.base_copies
        name = copies.get(parameter) or copies.get(self._tied_to(parameter) or "")
        return self.adapter.tensors[name] if name else None

    def _vocabulary_weights(self) -> tuple[str | None, ...]:
        return (self.outline.embedding, self.outline.head)

    def _tied_to(self, parameter: str) -> str | None:
        pair = self._vocabulary_weights()
        if not self.outline.ties or parameter not in pair:
            return None
        return pair[1 - pair.index(parameter)]


def plan_tensors(
    stored: dict[str, StoredTensor],
    outline: Outline,
    adapter: Adapter,
    new_ids: Sequence[int],
    dtype: str | None,
) -> Plan:
    """Every tensor of the output, each in the same file as in the base.

    Args:
        stored: the base's tensors, by their names in its files.
        dtype: safetensors name of the dtype for floating-point tensors; None keeps each as it is.

    Raises:
        ModelError: a tensor of the adapter would not be used, or the base's files contradict its config.
    """
    parameters = {name: _parameter_name(name, outline) for name in stored}
    merger = Merger(outline, adapter, {parameters[name]: tensor for name, tensor in stored.items()}, new_ids)
    if outline.ties:
        parameters = _with_tied_pair(parameters, merger)
    changes = ParameterChanges(outline, adapter).by_name(stored)
    plan: Plan = {tensor.path.name: [] for tensor in stored.values()}
    for name, parameter in parameters.items():
        source = stored.get(name) or merger.stored_as(parameter)
        stored_dtype = dtype if dtype and source.dtype in FLOATS else source.dtype
        if name in changes:
            make = partial(_changed, source, changes[name], FLOATS[stored_dtype])
            output = OutputTensor(name, stored_dtype, source.shape, make, merged=True)
        else:
            output = _output(name, parameter, source, merger, stored_dtype)
        plan[source.path.name].append(output)
    _require_all_sites(outline, set(parameters.values()))
    return plan


def _output(name: str, parameter: str, source: StoredTensor, merger: Merger, stored_dtype: str) -> OutputTensor:
    if parameter in merger.outline.shapes and merger.changes(parameter):
        shape = merger.outline.shapes[parameter]
        make = partial(merger.merged, parameter, FLOATS[stored_dtype])
        return OutputTensor(name, stored_dtype, shape, make, merged=True)
    if stored_dtype == source.dtype:
        return OutputTensor(name, stored_dtype, source.shape, source.read)
    return OutputTensor(name, stored_dtype, source.shape, partial(_cast, source, FLOATS[stored_dtype]))


def _changed(source: StoredTensor, change: Callable[[], torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """A tensor with what the adapter adds to it: computed in float32, rounded once."""
    merged = source.read_float32().add_(change())
    if not is_finite(merged):
        raise ModelError(
            f"{source.name}: the merged weight is not finite: the adapter or the base holds NaN or infinity"
        )
    return _rounded(source.name, merged, dtype)


def _cast(source: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
    return _rounded(source.name, source.read(), dtype)


def _rounded(name: str, values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    rounded = values.to(dtype)
    if dtype is torch.float16 and not is_finite(rounded):
        raise ModelError(f"{name} holds values beyond float16's range of 65504; choose bfloat16 or float32")
    return rounded


def _parameter_name(name: str, outline: Outline) -> str:
    """The parameter name of a stored tensor: files of the bare model lack the prefix that the model with a head has."""
    candidates = (name, f"{outline.prefix}.{name}", name.removeprefix(f"{outline.prefix}."))
    return next((candidate for candidate in candidates if candidate in outline.shapes), name)


def _with_tied_pair(parameters: dict[str, str], merger: Merger) -> dict[str, str]:
    """Stored names and their parameters, with one entry for the pair that the base ties if it stays tied, else two."""
    outline = merger.outline
    pair = (outline.embedding, str(outline.head))
    present = [name for name, parameter in parameters.items() if parameter in pair]
    if not present:
        raise ModelError(f"the base model's files hold neither {pair[0]} nor {pair[1]}")
    if len(present) == 2 and not torch.equal(*(merger.stored[parameters[name]].read() for name in present)):
        raise ModelError(
            f"the base's config.json ties {pair[0]} and {pair[1]}, but its files hold two different matrices; "
            "set tie_word_embeddings: false there"
        )
    if not outline.stays_tied:
        return parameters | {other: other for other in pair if other not in parameters.values()}
    _require_same_in_adapter(merger)
    others = {name: parameter for name, parameter in parameters.items() if name not in present}
    return others | {present[0]: outline.embedding}


def _require_same_in_adapter(merger: Merger) -> None:
    """Raise ModelError if the adapter holds different values for the embedding and the head tied to it."""
    embedding, head = (merger.outline.sites.get(str(name)) for name in (merger.outline.embedding, merger.outline.head))
    if embedding is None or head is None or not head.tensors:
        return
    ours, theirs = (
        [merger.adapter.tensors[name] for _, name in sorted(site.tensors.items())] for site in (embedding, head)
    )
    # Saved in full, each has one tensor; a LoRA of the head has the embedding's A and B, swapped and transposed.
    swapped = len(theirs) == 2
    for one, other in zip(ours, reversed(theirs) if swapped else theirs, strict=True):
        values = other.read().T if swapped else other.read()
        if not torch.equal(one.read(), values):
            raise ModelError(
                f"the adapter ties {one.name} and {other.name}, but its file holds different values for them"
            )


def _require_all_sites(outline: Outline, written: set[str]) -> None:
    for parameter, site in outline.sites.items():
        if parameter not in written and not (outline.stays_tied and parameter == outline.head):
            names = ", ".join(site.tensors.values()) or parameter
            raise ModelError(f"the adapter's {names} would not be used: the base model's files hold no {parameter}")


def base_name(site: Site) -> str | None:
    """The base weight's name in PEFT's module; None if the module was saved in full and needs no base weight."""
    names = dict(site.module.named_parameters())
    return next((name for name in BASE_WEIGHTS if name in names), None)


def merged_weight(site: Site, base: torch.Tensor | None, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The weight that makes the bare module compute what it computes under the adapter.

    The module comes from the outline: PEFT's layer with its rank, scale and variant, but no values. It is given the
    base weight and the adapter's tensors, merged by the method that `merge_and_unload` calls, and emptied again.

    Args:
        base: the base weight in float32, overwritten; None where the module does not need it.
        tensors: the adapter's tensors in float32, by their names within `site.module`.

    Raises:
        ModelError: the result is not finite, or this kind of adapter cannot be folded into a weight.
    """
    state = dict(tensors)
    name = base_name(site)
    if name is not None and base is not None:
        state[name] = base
    # Not strict, because a module saved in full leaves the module it replaces without values.
    unused = site.module.load_state_dict(state, strict=False, assign=True).unexpected_keys
    if unused:
        raise ModelError(f"PEFT's module has no place for {', '.join(unused)}")
    try:
        with torch.no_grad():
            weight = _merged_module(site.module).weight.detach()
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ModelError(f"PEFT cannot merge this adapter: {error}") from error
    finally:
        site.module.to("meta")
    if not is_finite(weight):
        raise ModelError("the merged weight is not finite: the adapter or the base holds NaN or infinity")
    return weight


def is_finite(values: torch.Tensor) -> bool:
    """Whether no value is NaN or infinite: either would make the sum non-finite, which is far cheaper to check."""
    return math.isfinite(values.sum(dtype=torch.float32).item())


def _merged_module(module: Any) -> Any:
    if isinstance(module, BaseTunerLayer):
        module.merge()
        return module.get_base_layer()
    return module.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
