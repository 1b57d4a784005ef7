"""What a run keeps between two steps: evaluation progress, random state and checkpoints."""

import math
import pickle
import random

import numpy as np
import pytest
import torch

from posttrain.errors import ModelError
from posttrain.runs.checkpoints import FORMAT, read_state
from posttrain.runs.resume import ResumePoint
from posttrain.train.state import Progress, seed_step
from train.small_training import TokenRecipe, make, train


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([2.0, 1.5, 1.75, 1.25], [True, True, False, True]),
        ([math.nan, 2.0, 2.5, 1.0], [False, True, False, True]),
        ([2.0, math.nan, 1.5], [True, False, True]),
        ([math.nan, math.nan], [False, False]),
        ([math.inf, 3.0], [False, True]),
        ([2.0, 2.0], [True, False]),
    ],
)
def test_the_best_evaluation_is_the_lowest_number_and_never_one_that_is_none(losses, best):
    progress = Progress()
    assert [progress.measured(loss, "loss", 0.0) for loss in losses] == best


def test_of_rewards_the_highest_is_the_best():
    progress = Progress()
    assert [progress.measured(reward, "reward", 0.0) for reward in (0.1, 0.3, 0.2, 0.4)] == [True, True, False, True]


def test_an_improvement_that_is_too_small_is_the_best_but_runs_patience_out():
    progress = Progress()
    assert [progress.measured(loss, "loss", 0.5) for loss in (2.0, 1.75, 1.25, 1.0)] == [True] * 4
    # 2.0 to 1.75 and 1.25 to 1.0 gain 0.25 each, and 1.75 to 1.25 gains exactly 0.5, which is not enough.
    assert progress.since_best == 3
    progress.measured(0.25, "loss", 0.5)
    assert progress.since_best == 0


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_the_random_numbers_of_a_step_depend_on_seed_step_and_rank_alone(monkeypatch: pytest.MonkeyPatch):
    seed_step(7, 3)
    first = drawn()
    drawn()
    seed_step(7, 3)
    assert drawn() == first
    others = []
    for seed, step, rank in ((7, 4, 0), (8, 3, 0), (7, 3, 1)):
        monkeypatch.setenv("RANK", str(rank))
        seed_step(seed, step)
        others.append(drawn())
    assert len({first, *others}) == 4


def test_a_checkpoint_has_the_model_for_others_and_what_training_needs_to_go_on(tmp_path, tiny_model):
    trained = train(make(tmp_path / "run", tiny_model, TokenRecipe(max_steps=2)))
    folder = trained.run.path / "checkpoint-2"
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "optimizer.pt", "toolkit_state.json"} <= names
    state = read_state(folder)
    assert (state["format"], state["counters"]["step"]) == (FORMAT, 2)


def test_a_resumed_run_decays_the_weights_as_todays_config_says(tmp_path, tiny_model):
    trained = train(make(tmp_path / "run", tiny_model, TokenRecipe(max_steps=2)))
    point = ResumePoint(trained.run.path / "checkpoint-2", trained.state.counters)
    today = trained.training.model_copy(update={"weight_decay": 0.25})
    state = make(trained.run.path, tiny_model, TokenRecipe(), point, training=today).state
    assert [group["weight_decay"] for group in state.optimizers[0].param_groups] == [0.25, 0.0]


class Unwelcome:
    def __reduce__(self):
        return print, ("this must not be printed",)


def test_a_file_that_holds_more_than_tensors_is_not_read(tmp_path, tiny_model, capsys):
    trained = train(make(tmp_path / "run", tiny_model, TokenRecipe(max_steps=2)))
    folder = trained.run.path / "checkpoint-2"
    (folder / "optimizer.pt").write_bytes(pickle.dumps(Unwelcome()))
    with pytest.raises(ModelError, match="holds more than tensors and numbers, and was not read"):
        make(trained.run.path, tiny_model, TokenRecipe(), ResumePoint(folder, trained.state.counters))
    assert "this must not be printed" not in capsys.readouterr().out
