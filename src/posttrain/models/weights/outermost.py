"""The outermost modules of some kinds in a model."""

from typing import Any

from torch import nn


def outermost(model: nn.Module, kinds: type[Any] | tuple[type[Any], ...]) -> dict[str, Any]:
    """The modules of these kinds by their names, without those that are inside another one."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, kinds) and not name.startswith(tuple(f"{outer}." for outer in found)):
            found[name] = module
    return found
