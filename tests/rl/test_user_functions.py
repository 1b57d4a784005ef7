"""User-defined advantage and loss functions: what they receive, and what happens if they fail."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.config.load import load_config
from posttrain.errors import ConfigError, RunError, ToolkitError
from posttrain.rl.config import RLConfig
from posttrain.rl.losses import LossInputs
from posttrain.rl.objective import Means, PolicyObjective, UserTensors, check_user_functions, digests
from posttrain.rl.plan import show_plan
from posttrain.rl.presets import Objective, UserFunction, resolve_objective
from rl.rl_recipes import WrittenServer, train_written
from rl.rl_runs import WriteRun, folder_of, train_here, training_rows
from running import metrics

# The toolkit's group baseline and clipped loss as a user would write them, so both train alike.
OWN = """
import torch

def advantage(rewards, lengths, options):
    assert rewards.shape == lengths.shape
    found = rewards - rewards.nanmean(dim=1, keepdim=True)
    return torch.nan_to_num(found) * options.get("times", 1.0)

def loss(inputs, options):
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    low, high = 1 - options["clip"], 1 + options["clip"]
    return -torch.min(ratio * inputs.advantages, ratio.clamp(low, high) * inputs.advantages)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def function(path: Path, name: str, **options: Any) -> UserFunction:
    return UserFunction(path=f"{path}:{name}", options=options)


def test_an_advantage_of_one_s_own_is_given_rewards_lengths_and_options(own: Path) -> None:
    policy = PolicyObjective(Objective(advantage=function(own, "advantage", times=2.0)))
    rewards = torch.tensor([[1.0, 0.0, math.nan], [0.5, 0.5, 0.5]])
    assert policy.advantages(rewards, torch.ones(2, 3)).tolist() == [[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]


def test_a_loss_of_one_s_own_takes_the_place_of_the_policy_s_alone(own: Path) -> None:
    plain = Objective(beta=0.04)
    mask = torch.tensor([[True, True], [True, False]])
    logprobs = torch.tensor([[-0.5, -1.0], [-2.0, -0.1]], dtype=torch.float64)
    inputs = LossInputs(logprobs, logprobs - 0.3, torch.tensor([[1.0], [-1.0]]), mask, logprobs - 0.2)
    entropies = torch.ones(2, 2)
    found, wanted = (
        PolicyObjective(objective).token_losses(inputs, entropies, None, Means())
        for objective in (Objective(beta=0.04, policy_loss=function(own, "loss", clip=0.2)), plain)
    )
    assert torch.allclose(found[mask], wanted[mask])


def test_a_run_with_both_of_one_s_own_trains_as_the_preset_that_they_are(
    a_run: WriteRun, own: Path, tmp_path: Path
) -> None:
    rewards = (1.0, 0.0, 0.0, 0.5, 0.0, 1.0, 0.25, 0.0)
    objective = {
        "advantage": {"path": str(own) + ":advantage"},
        "policy_loss": {"path": str(own) + ":loss", "options": {"clip": 0.2}},
    }
    steps = ("training.max_steps=3",)
    plain, other = a_run("plain", evaluation=None), a_run("own", evaluation=None, objective=objective)
    runs = [train_written(config, WrittenServer(rewards), *steps) for config in (plain, other)]
    one, two = (training_rows(metrics(run.path)) for run in runs)
    assert [row["grad_norm"] for row in one] == pytest.approx([row["grad_norm"] for row in two], rel=1e-4)
    assert all(row["grad_norm"] > 0 for row in one)


BROKEN = {
    "raises": (
        "def f(rewards, lengths, options):\n    x = 1\n    raise ValueError('no such thing')\n",
        r":3: ValueError: no such",
    ),
    "wrong_shape": (
        "def f(rewards, lengths, options):\n    return rewards[0]\n",
        r":1: .* of shape \[2, 3\], but returned \[3\]",
    ),
    "no_tensor": ("def f(rewards, lengths, options):\n    return 1\n", r":1: .* of shape \[2, 3\], but returned int"),
    "not_finite": ("def f(rewards, lengths, options):\n    return rewards / 0\n", r":1: .* not finite"),
    "missing": ("def g():\n    pass\n", r"has no function 'f'"),
    "syntax": ("def f(:\n", r"broken\.py"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_function_that_fails_is_told_by_file_and_line_before_anything_is_trained(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "broken.py"
    text, told = BROKEN[kind]
    path.write_text(text)
    with pytest.raises(ConfigError, match=told):
        check_user_functions(Objective(advantage=UserFunction(path=f"{path}:f")))


def test_a_dry_run_calls_it_on_the_example(a_run: WriteRun, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN["raises"][0])
    config = a_run(objective={"advantage": {"path": f"{tmp_path}/broken.py:f"}})
    with pytest.raises(ConfigError, match=r"broken\.py:3: ValueError"):
        show_plan(load_config(config, RLConfig), config.stem)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    objective = Objective(policy_loss=UserFunction(path=f"{tmp_path}/none.py:f"))
    for call in (check_user_functions, digests):
        with pytest.raises(ToolkitError, match=r"none\.py"):
            call(objective)


def test_a_loss_that_fails_on_real_numbers_ends_the_run_with_nothing_trained(a_run: WriteRun, tmp_path: Path) -> None:
    # The example has 3 completions; a step has more.
    path = tmp_path / "late.py"
    path.write_text(
        "def loss(inputs, options):\n"
        "    if len(inputs.logprobs) > 3:\n"
        "        raise RuntimeError('too many')\n"
        "    return inputs.logprobs\n"
    )
    config = a_run(evaluation=None, objective={"policy_loss": {"path": f"{path}:loss"}})
    with pytest.raises(RunError, match=r"late\.py:3: RuntimeError: too many"):
        train_written(config, WrittenServer((1.0, 0.0) * 4), "training.max_steps=2")
    assert not list((config.parent / "runs" / "rl").glob("checkpoint-*"))


@pytest.mark.parametrize("change", ["file", "options"])
def test_a_run_whose_function_changed_is_another_run(a_run: WriteRun, own: Path, change: str) -> None:
    objective = {"advantage": {"path": str(own) + ":advantage", "options": {"times": 1.0}}}
    config = a_run(evaluation=None, objective=objective, training={"max_steps": 2})
    train_here(config)
    override: tuple[str, ...] = ("training.max_steps=4",)
    if change == "file":
        own.write_text(OWN + "# another word\n")
    else:
        override += ("objective.advantage.options.times=2.0",)
    with pytest.raises(ConfigError, match=r"would not be the same run.*\n  objective\.advantage"):
        train_here(config, override, resume=True)
    assert (folder_of(config) / "result.json").exists()


def test_a_path_without_a_function_is_refused_by_its_line(a_run: WriteRun) -> None:
    config = a_run(objective={"policy_loss": {"path": "own.py"}})
    with pytest.raises(ConfigError, match=r"rl\.yaml(:\d+)?: objective\.policy_loss.*path"):
        load_config(config, RLConfig)


def test_a_path_is_relative_to_the_file_that_names_it(a_run: WriteRun) -> None:
    config = a_run(objective={"advantage": {"path": "own.py:advantage"}})
    config.with_name("own.py").write_text(OWN)
    settings = load_config(config, RLConfig)
    objective = resolve_objective(settings.algorithm, settings.objective)
    assert objective.advantage is not None
    assert UserTensors(objective.advantage)(torch.ones(1, 2), torch.ones(1, 2), shape=(1, 2)).tolist() == [[0.0, 0.0]]
