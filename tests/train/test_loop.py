"""The loop: when it evaluates, saves and stops, and where it resumes."""

import math
import os
import signal

import pytest
import torch

from posttrain.config.sections.datasets import ValidationConfig
from posttrain.errors import RunError, RunInterrupted
from posttrain.runs import checkpoints
from posttrain.runs.directory import RunDirectory
from posttrain.runs.metrics import read_metrics
from posttrain.runs.resume import ResumePoint
from posttrain.train.loop import last_checkpoint, require_finite
from train.small_training import TokenRecipe, Trained, make, settings, train


def started(tmp_path, tiny_model, **recipe) -> Trained:
    return make(tmp_path / "run", tiny_model, TokenRecipe(**recipe))


def held_out(**section) -> ValidationConfig:
    return ValidationConfig(fraction=0.5, **section)


def test_the_loss_falls_and_every_step_has_its_line(tmp_path, tiny_model):
    trained = train(started(tmp_path, tiny_model))
    rows = read_metrics(trained.run.metrics)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert trained.saved == [6]


def test_the_gradient_of_a_step_is_that_of_all_its_micro_batches(tmp_path, tiny_model):
    trained = started(tmp_path, tiny_model, max_steps=1)
    loss = sum(trained.recipe.loss(trained.state.model, ids) for ids in (torch.tensor([[3]]), torch.tensor([[3, 3]])))
    loss.backward()
    weights = [each for each in trained.state.model.parameters() if each.requires_grad]
    norm = torch.nn.utils.get_total_norm([each.grad for each in weights])
    trained.state.optimizers[0].zero_grad()
    (row,) = read_metrics(train(trained).run.metrics)
    assert row["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert row["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)


def test_a_run_whose_activations_are_offloaded_is_the_same(tmp_path, tiny_model):
    plain = train(started(tmp_path / "plain", tiny_model))
    training = settings().model_copy(update={"offload_activations": True})
    moved = train(make(tmp_path / "moved", tiny_model, TokenRecipe(), training=training))
    measured = [
        [row[key] for row in read_metrics(each.run.metrics) for key in ("loss", "grad_norm")] for each in (plain, moved)
    ]
    assert measured[0] == pytest.approx(measured[1], rel=1e-6)


def test_checkpoints_come_every_so_many_steps_and_at_the_end_and_the_oldest_go(tmp_path, tiny_model):
    assert train(started(tmp_path, tiny_model, max_steps=5), save_every=2).saved == [2, 4, 5]
    assert train(started(tmp_path / "b", tiny_model, max_steps=5), save_every=1, keep=2).saved == [4, 5]


def test_the_oldest_checkpoints_go_even_where_a_kill_came_before_and_nothing_is_left_to_train(tmp_path, tiny_model):
    trained = train(started(tmp_path, tiny_model, max_steps=3), save_every=1)  # keeps all of them
    assert trained.saved == [1, 2, 3]
    assert train(trained, keep=2).saved == [2, 3]


def test_evaluations_come_at_the_start_every_so_many_steps_and_at_the_end(tmp_path, tiny_model):
    trained = train(started(tmp_path, tiny_model, max_steps=5), validation=held_out(every=2))
    assert [row["step"] for row in read_metrics(trained.run.metrics) if "eval_loss" in row] == [0, 2, 4, 5]
    late = train(started(tmp_path / "b", tiny_model, max_steps=4), validation=held_out(every=2, at_start=False))
    assert [row["step"] for row in read_metrics(late.run.metrics) if "eval_loss" in row] == [2, 4]


def test_an_evaluation_that_an_earlier_end_kept_from_being_made_is_made_up_for(tmp_path, tiny_model):
    trained = started(tmp_path, tiny_model, max_steps=4, losses=[3.0, 2.0, 1.0])
    trained.state.counters.step = 2
    train(trained, validation=held_out(every=2))
    assert [row["step"] for row in read_metrics(trained.run.metrics) if "eval_loss" in row] == [2, 4]


def test_the_best_evaluation_is_saved_and_marked(tmp_path, tiny_model):
    losses = [0.0, 1.5, 1.75, math.nan, 1.25, 1.5, 1.6]  # the first is from before training
    trained = train(started(tmp_path, tiny_model, losses=losses), validation=held_out(every=1))
    assert trained.saved == [1, 4, 6]
    assert (trained.run.path / "best").read_text() == "checkpoint-4"


def test_it_stops_after_so_many_evaluations_without_a_better_one(tmp_path, tiny_model):
    # An improvement of 0.05 is too small, so 1.95 and 2.1 are the two in a row.
    losses = [9.0, 2.0, 1.95, 2.1, 0.0]
    validation = held_out(every=1, patience=2, min_improvement=0.1)
    trained = train(started(tmp_path, tiny_model, losses=losses), validation=validation)
    assert trained.state.counters.step == 3
    assert trained.saved == [1, 2, 3]


def test_a_run_that_had_stopped_for_that_stops_there_again_when_it_is_resumed(tmp_path, tiny_model):
    once_a_step = held_out(every=1, patience=2, at_start=False)
    trained = train(started(tmp_path, tiny_model, losses=[2.0, 2.5, 2.5]), validation=once_a_step)
    assert trained.saved == [1, 3]
    point = ResumePoint(trained.run.path / "checkpoint-3", trained.state.counters)
    resumed = train(make(trained.run.path, tiny_model, TokenRecipe(losses=[1.0]), point), validation=once_a_step)
    assert resumed.saved == [1, 3]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_step_end_and_saves_it(tmp_path, tiny_model, capfd, number, exit_code):
    trained = started(tmp_path, tiny_model, signals=[(3, number)])
    with pytest.raises(RunInterrupted, match=r"stopped after step 3, .*checkpoint-3; --resume continues") as stopped:
        train(trained)
    assert trained.saved == [3]
    assert stopped.value.exit_code == exit_code
    assert "this step is finished and saved first; press Ctrl-C again to stop at once" in capfd.readouterr().err


def test_a_second_one_does_not_wait(tmp_path, tiny_model):
    trained = started(tmp_path, tiny_model, signals=[(2, signal.SIGINT), (2, signal.SIGINT)])
    with pytest.raises(KeyboardInterrupt):
        train(trained)
    assert trained.saved == []


def test_a_second_sigterm_is_the_first_one_come_by_another_way(tmp_path, tiny_model):
    trained = started(tmp_path, tiny_model, signals=[(2, signal.SIGTERM), (2, signal.SIGTERM)])
    with pytest.raises(RunInterrupted, match="stopped after step 2"):
        train(trained)


def test_training_goes_on_to_a_step_from_which_it_can_be_resumed(tmp_path, tiny_model):
    trained = started(tmp_path, tiny_model, signals=[(2, signal.SIGINT)], resumable_every=4)
    with pytest.raises(RunInterrupted, match="stopped after step 4"):
        train(trained)
    assert trained.saved == [4]


def test_a_signal_in_an_evaluation_ends_training_there(tmp_path, tiny_model):
    trained = started(tmp_path, tiny_model, signals=[(2, signal.SIGINT)], in_evaluation=True)
    with pytest.raises(RunInterrupted, match="stopped after step 2"):
        train(trained, validation=held_out(every=2))
    assert trained.saved == [2]


def test_after_the_evaluation_at_the_start_the_first_step_is_trained_and_saved(tmp_path, tiny_model):
    trained = started(tmp_path, tiny_model, signals=[(0, signal.SIGINT)], in_evaluation=True)
    with pytest.raises(RunInterrupted, match="stopped after step 1"):
        train(trained, validation=held_out(every=2))


def test_a_signal_that_is_ignored_stays_ignored(tmp_path, tiny_model):
    # As a shell sets it for background jobs.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert train(started(tmp_path, tiny_model, signals=[(2, signal.SIGINT)])).state.counters.step == 6
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_nobody_needs_to_read_what_is_said(tmp_path, tiny_model):
    # As when stderr is piped to `tee` and Ctrl-C ends `tee` too.
    trained = started(tmp_path, tiny_model, signals=[(3, signal.SIGINT)])
    reader, writer = os.pipe()
    kept = os.dup(2)
    os.dup2(writer, 2)
    os.close(reader)
    try:
        with pytest.raises(RunInterrupted):
            train(trained)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(writer)
    assert trained.saved == [3]


def test_a_signal_in_the_last_step_changes_nothing(tmp_path, tiny_model):
    assert train(started(tmp_path, tiny_model, signals=[(6, signal.SIGINT)])).state.counters.step == 6


def test_the_handlers_of_before_are_back_afterwards(tmp_path, tiny_model):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(RunInterrupted):
        train(started(tmp_path, tiny_model, signals=[(1, signal.SIGTERM)]))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_batch_that_is_not_to_be_had_ends_the_run_with_what_was_learnt(tmp_path, tiny_model):
    trained = started(tmp_path, tiny_model, away_at=3)
    with pytest.raises(RunError, match="stopped after step 3, which is saved; --resume continues from it: nobody is"):
        train(trained)
    assert trained.saved == [3]


def test_without_the_first_batch_there_is_nothing_to_save(tmp_path, tiny_model):
    trained = started(tmp_path, tiny_model, away_at=0)
    with pytest.raises(RunError, match="stopped before the first step finished, so there is nothing to save: nobody"):
        train(trained)
    assert trained.saved == []


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_first_batch_is_waited_for_is_no_failure(tmp_path, tiny_model, number, exit_code):
    trained = started(tmp_path, tiny_model, signals=[(1, number)], away_at=0)
    with pytest.raises(RunInterrupted, match="stopped before the first step finished, so nothing was saved") as stopped:
        train(trained)
    assert (stopped.value.exit_code, trained.saved) == (exit_code, [])


def test_a_loss_that_is_no_number_is_told_with_its_micro_batches_and_nothing_of_it_is_saved(tmp_path, tiny_model):
    trained = train(started(tmp_path, tiny_model, max_steps=2))
    with torch.no_grad():
        trained.state.model.get_input_embeddings().weight[3] = math.nan
    trained.recipe.max_steps = 4
    with pytest.raises(RunError, match=r"(?s)loss is nan at step 3.*step 2, micro-batches \[0, 1\].*checkpoint-2"):
        train(trained)
    assert trained.saved == [2]


def test_a_resumed_run_is_the_one_that_was_left_alone_bit_for_bit(tmp_path, tiny_model):
    alone = train(started(tmp_path, tiny_model), save_every=3)
    half = started(tmp_path / "half", tiny_model, signals=[(3, signal.SIGTERM)])
    with pytest.raises(RunInterrupted):
        train(half)
    point = ResumePoint(half.run.path / "checkpoint-3", half.state.counters)
    resumed = train(make(half.run.path, tiny_model, TokenRecipe(), point))
    weights = zip(alone.state.model.parameters(), resumed.state.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    assert [*half.recipe.drawn, *resumed.recipe.drawn] == alone.recipe.drawn
    rows = read_metrics(alone.run.metrics), read_metrics(half.run.metrics)
    assert [row["loss"] for row in rows[0]] == [row["loss"] for row in rows[1]]


def test_the_message_says_where_training_can_go_on(tmp_path):
    run = RunDirectory(tmp_path)
    assert last_checkpoint(run) == "no checkpoint was written"
    for step in (2, 4):
        (run.trainer_private / f"checkpoint-{step}").mkdir(parents=True)
        checkpoints.publish(run, step, {})
    assert last_checkpoint(run).startswith(
        f"the last checkpoint is {tmp_path}/checkpoint-4: --resume continues from it"
    )


def test_the_lines_of_the_message_are_asked_for_only_where_a_step_broke():
    require_finite(1.0, 1.0, 3, details=lambda: pytest.fail("nothing broke"))
    with pytest.raises(RunError, match=r"(?s)loss is nan at step 3.*model\.dtype.*\nthese rows$"):
        require_finite(math.nan, 1.0, 3, scaled=True, details=lambda: ["these rows"])


def test_gradients_that_overflow_stop_a_run_unless_such_steps_are_passed_over():
    with pytest.raises(RunError, match="grad_norm is inf at step 1"):
        require_finite(2.5, math.inf, 1)
    require_finite(2.5, math.inf, 1, scaled=True)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_loss_that_is_not_finite_stops_it_always(scaled: bool):
    with pytest.raises(RunError, match="loss is nan at step 7"):
        require_finite(math.nan, 1.0, 7, scaled=scaled)
    require_finite(2.5, 1.0, 7, scaled=scaled)
