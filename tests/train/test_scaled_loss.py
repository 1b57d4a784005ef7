"""What counts as a broken step where the loss is scaled for float16, and where it is not."""

import math

import pytest

from posttrain.errors import RunError
from posttrain.train.callbacks import require_finite


def test_gradients_that_overflow_stop_a_run_unless_the_trainer_passes_over_such_steps():
    logs = {"loss": 2.5, "grad_norm": math.inf}
    with pytest.raises(RunError, match="grad_norm is inf at step 1"):
        require_finite(logs, 1)
    require_finite(logs, 1, scaled=True)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_loss_that_is_not_finite_stops_it_always(scaled):
    with pytest.raises(RunError, match="loss is nan at step 7"):
        require_finite({"loss": math.nan, "grad_norm": 1.0}, 7, scaled=scaled)
    require_finite({"loss": 2.5, "grad_norm": 1.0}, 7, scaled=scaled)
