"""The merged weight of one module, by PEFT's own arithmetic.

The module comes out of the outline: PEFT's layer with its rank, scale and variant, but no values. It is given
the base weight and the adapter's tensors, merged by the method that `merge_and_unload` calls, and emptied.
"""

import math
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer

from posttrain.errors import ModelError
from posttrain.merge.outline import BASE_WEIGHTS, Site


def base_name(site: Site) -> str | None:
    """What PEFT's module calls the base weight that it changes; None if it was saved in full and needs none."""
    names = dict(site.module.named_parameters())
    return next((name for name in BASE_WEIGHTS if name in names), None)


def merged_weight(site: Site, base: torch.Tensor | None, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """The weight that makes the bare module compute what it computes under the adapter.

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
    # Not strict, because a module saved in full leaves the one that it replaces without values.
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
    """Whether no value is NaN or infinite: either one ends up in the sum, which is far cheaper to look at."""
    return math.isfinite(values.sum(dtype=torch.float32).item())


def _merged_module(module: Any) -> Any:
    if isinstance(module, BaseTunerLayer):
        module.merge()
        return module.get_base_layer()
    return module.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
