"""What a run says of itself at its start."""

from typing import Any


def trained_share(model: Any) -> str:
    """How many of the model's parameters are trained, as a line."""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained, total = sum(size for size, is_trained in sizes if is_trained), sum(size for size, _ in sizes)
    return f"trained parameters: {trained:,} of {total:,} ({trained / total:.1%})"
