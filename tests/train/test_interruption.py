"""Ctrl-C and SIGTERM while a trainer trains: after which step it ends, and with which exit code."""

import os
import signal

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from posttrain.errors import RunInterrupted
from posttrain.runs.directory import RunDirectory
from posttrain.train.interruption import interruptible


class Line(torch.nn.Module):
    """One weight, learnt by least squares."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.slope * x - labels) ** 2).mean()}


class Signals(TrainerCallback):
    """Sends this process signals while a step is trained, each `(step, signal)` once, or in an evaluation."""

    def __init__(self, *wanted: tuple[int, signal.Signals], in_evaluation: bool = False) -> None:
        self._wanted = wanted
        self._in_evaluation = in_evaluation
        self.saved: list[int] = []

    def on_step_begin(self, args, state, control, **kwargs):
        if not self._in_evaluation:
            self._send(state.global_step + 1)

    def on_prediction_step(self, args, state, control, **kwargs):
        if self._in_evaluation:
            self._send(state.global_step)

    def on_save(self, args, state, control, **kwargs):
        self.saved.append(state.global_step)

    def _send(self, step: int) -> None:
        for wanted, number in self._wanted:
            if wanted == step:
                os.kill(os.getpid(), number)
        self._wanted = tuple(each for each in self._wanted if each[0] != step)


def train(folder, signals: Signals, may_stop_after=lambda step: True, **arguments) -> Trainer:
    """6 steps of 2 rows."""
    settings = TrainingArguments(
        str(folder),
        max_steps=6,
        per_device_train_batch_size=2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **arguments,
    )
    rows = [{"x": float(number), "labels": 2.0 * number} for number in range(12)]
    trainer = Trainer(Line(), settings, train_dataset=rows, eval_dataset=rows, callbacks=[signals])  # pyright: ignore[reportArgumentType]
    with interruptible(trainer, RunDirectory(folder), may_stop_after):
        trainer.train()
    return trainer


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_the_step_end_and_saves_it(tmp_path, capfd, number, exit_code):
    signals = Signals((3, number))
    with pytest.raises(RunInterrupted) as stopped:
        train(tmp_path, signals)
    assert signals.saved == [3]
    assert stopped.value.exit_code == exit_code
    assert str(stopped.value) == (
        f"stopped after step 3, which is saved in {tmp_path}/checkpoint-3; --resume goes on from it"
    )
    assert "this step is finished and saved first; once more (Ctrl-C) stops at once" in capfd.readouterr().err


def test_a_second_one_does_not_wait(tmp_path):
    twice = Signals((2, signal.SIGINT), (2, signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, twice)
    assert twice.saved == []


def test_a_second_sigterm_is_the_first_one_come_by_another_way(tmp_path):
    twice = Signals((2, signal.SIGTERM), (2, signal.SIGTERM))
    with pytest.raises(RunInterrupted, match="stopped after step 2"):
        train(tmp_path, twice)
    assert twice.saved == [2]


def test_training_goes_on_to_a_step_from_which_it_can_be_resumed(tmp_path):
    signals = Signals((2, signal.SIGINT))
    with pytest.raises(RunInterrupted, match="stopped after step 4"):
        train(tmp_path, signals, may_stop_after=lambda step: step % 4 == 0)
    assert signals.saved == [4]


def test_a_signal_in_an_evaluation_ends_training_there(tmp_path):
    signals = Signals((2, signal.SIGINT), in_evaluation=True)
    with pytest.raises(RunInterrupted, match="stopped after step 2"):
        train(tmp_path, signals, eval_strategy="steps", eval_steps=2)
    assert signals.saved == [2]


def test_after_the_evaluation_at_the_start_the_first_step_is_trained_and_saved(tmp_path):
    signals = Signals((0, signal.SIGINT), in_evaluation=True)
    with pytest.raises(RunInterrupted, match="stopped after step 1"):
        train(tmp_path, signals, eval_on_start=True)
    assert signals.saved == [1]


def test_a_signal_that_is_ignored_stays_ignored(tmp_path):
    # As a shell has it for what it starts in the background.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert train(tmp_path, Signals((2, signal.SIGINT))).state.global_step == 6
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_nobody_needs_to_read_what_is_said(tmp_path):
    # As where Ctrl-C ended `tee` too, to which stderr went.
    reader, writer = os.pipe()
    kept = os.dup(2)
    os.dup2(writer, 2)
    os.close(reader)
    signals = Signals((3, signal.SIGINT))
    try:
        with pytest.raises(RunInterrupted):
            train(tmp_path, signals)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(writer)
    assert signals.saved == [3]


def test_a_signal_in_the_last_step_changes_nothing(tmp_path):
    assert train(tmp_path, Signals((6, signal.SIGINT))).state.global_step == 6


def test_the_handlers_of_before_are_back_afterwards(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(RunInterrupted):
        train(tmp_path, Signals((1, signal.SIGTERM)))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
