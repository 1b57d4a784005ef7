"""Whether a model can be given rows in another layout, with positions and a mask: found out by asking it."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from posttrain.models.kernels.compiled_layers import as_written


def attends_to_everything(model: Any) -> bool:
    """Whether all layers see every token before; not so where one sees a window, or has a state instead."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=model.config).layers)


def says_the_same(model: Any, plain: Callable[[], torch.Tensor], changed: Callable[[], torch.Tensor]) -> bool:
    """Whether two ways to call `model` give the same logits, but for rounding; False where the second one fails."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), as_written(model):
            expected = plain().float()
            found = changed().float().view_as(expected)
    except (TypeError, ValueError, RuntimeError, AttributeError, AssertionError, IndexError):
        return False  # this model takes no such mask
    finally:
        model.train(was_training)
    return bool(torch.isclose(found, expected, rtol=0.1, atol=0.1 * float(expected.std())).all())
