"""Stop at a step whose loss or gradient is not finite, and say where training can go on."""

import math
from collections.abc import Callable, Sequence

from posttrain.errors import RunError
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory


def require_finite(
    loss: float,
    grad_norm: float,
    step: int,
    *,
    scaled: bool = False,
    told: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Stop before a broken step is saved: what is on disk stays the last good state.

    Args:
        scaled: the loss is scaled for float16. Its gradients may overflow while the scale is found; such a step is
            passed over and the scale lowered.
        told: more lines of the message. All ranks call it, since all have the same numbers.

    Raises:
        RunError: the loss or the norm of the gradient is not finite.
    """
    for name, value in [("loss", loss), *([] if scaled else [("grad_norm", grad_norm)])]:
        if not math.isfinite(value):
            raise RunError(
                "\n".join(
                    [
                        f"{name} is {value} at step {step}, so training stopped; earlier checkpoints are as they were. "
                        "Lower training.learning_rate, or keep training.max_grad_norm above 0"
                        + (", or set model.dtype: bfloat16 or float32" if scaled else ""),
                        *told(),
                    ]
                )
            )


def last_checkpoint(run: RunDirectory) -> str:
    """From where training can go on, as a line of a message."""
    latest = latest_checkpoint(run)
    if latest is None:
        return "no checkpoint had been written"
    return (
        f"the last checkpoint is {latest.path}: --resume goes on from it, also with another training.learning_rate or "
        "training.max_grad_norm"
    )
