"""A step that is not finite: where training stops, and where it can go on."""

import math

import pytest

from posttrain.errors import RunError
from posttrain.runs import checkpoints
from posttrain.runs.directory import RunDirectory
from posttrain.train.broken_steps import last_checkpoint, require_finite


def test_the_message_says_where_training_can_go_on(tmp_path):
    run = RunDirectory(tmp_path)
    assert last_checkpoint(run) == "no checkpoint had been written"
    for step in (2, 4):
        (run.trainer_private / f"checkpoint-{step}").mkdir(parents=True)
        checkpoints.publish(run, step, {})
    assert last_checkpoint(run).startswith(f"the last checkpoint is {tmp_path}/checkpoint-4: --resume goes on from it")


def test_the_lines_of_the_message_are_asked_for_only_where_a_step_broke():
    require_finite(1.0, 1.0, 3, told=lambda: pytest.fail("nothing broke"))
    with pytest.raises(RunError, match=r"(?s)loss is nan at step 3.*model\.dtype.*\nthese rows$"):
        require_finite(math.nan, 1.0, 3, scaled=True, told=lambda: ["these rows"])


def test_gradients_that_overflow_stop_a_run_unless_such_steps_are_passed_over():
    with pytest.raises(RunError, match="grad_norm is inf at step 1"):
        require_finite(2.5, math.inf, 1)
    require_finite(2.5, math.inf, 1, scaled=True)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_loss_that_is_not_finite_stops_it_always(scaled: bool):
    with pytest.raises(RunError, match="loss is nan at step 7"):
        require_finite(math.nan, 1.0, 7, scaled=scaled)
    require_finite(2.5, 1.0, 7, scaled=scaled)
