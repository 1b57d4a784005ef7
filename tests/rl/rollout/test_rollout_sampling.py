"""Temperature and length of an iteration are a function of the iteration, and are checked over the whole run."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from posttrain.config.load import load_config
from posttrain.config.sections.generation import SamplingConfig
from posttrain.errors import ConfigError
from posttrain.inference.engine import Sampling
from posttrain.rl.config import RLConfig, RolloutConfig
from posttrain.rl.debug.look import DebugRequest, look_at_rollouts
from posttrain.rl.plan import show_plan
from rl.rl_recipes import WrittenServer, a_recipe
from rl.rl_runs import WriteRun


def a_rollout_config(**keys: Any) -> RolloutConfig:
    return RolloutConfig.model_validate(keys)


def test_a_number_holds_for_the_whole_run() -> None:
    rollout = a_rollout_config(max_new_tokens=64, temperature=0.7, top_p=0.9, importance_correction="none")
    assert rollout.at(0) == rollout.at(10**9) == SamplingConfig(max_new_tokens=64, temperature=0.7, top_p=0.9)
    assert rollout.longest == 64


def test_points_are_joined_by_lines_and_lengths_rounded_down() -> None:
    rollout = a_rollout_config(max_new_tokens={"0": 100, "10": 205}, temperature={"10": 1.2, "20": 0.7})
    assert [rollout.at(step).max_new_tokens for step in (0, 1, 5, 10, 99)] == [100, 110, 152, 205, 205]
    assert [rollout.at(step).temperature for step in (0, 10, 12, 20, 99)] == [1.2, 1.2, 1.1, 0.7, 0.7]
    assert rollout.longest == 205


def test_a_burst_replaces_the_temperature_for_a_while() -> None:
    rollout = a_rollout_config(temperature=0.7, temperature_burst={"every": 10, "length": 2, "value": 1.5})
    hot = [step for step in range(35) if rollout.at(step).temperature == 1.5]
    assert hot == [10, 11, 20, 21, 30, 31]
    assert {rollout.at(step).temperature for step in range(35)} == {0.7, 1.5}


def test_the_engine_gets_the_numbers_of_the_iteration() -> None:
    rollout = a_rollout_config(max_new_tokens={"0": 8, "4": 16}, stop=["x"])
    assert Sampling.of(rollout.at(2), logprobs=True) == Sampling(12, 1.0, stop=("x",), logprobs=True)


POINTS = st.dictionaries(st.integers(0, 50).map(str), st.integers(1, 300), min_size=1, max_size=4)


@given(POINTS, st.integers(0, 60))
def test_no_completion_is_longer_than_the_longest(points: dict[str, int], step: int) -> None:
    rollout = a_rollout_config(max_new_tokens=points, temperature=points, engine="hf")
    assert min(points.values()) <= rollout.at(step).max_new_tokens <= rollout.longest
    assert min(rollout.temperatures) <= rollout.at(step).temperature <= max(rollout.temperatures)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"temperature": 0}, "nothing can be learnt"),
        ({"temperature": {"0": 1, "100": 0}}, "nothing can be learnt"),
        ({"temperature_burst": {"every": 10, "value": 0}}, "nothing can be learnt"),
        ({"temperature": {"0": 1, "100": 2.5}, "engine": "vllm"}, "at most 2"),
        ({"temperature_burst": {"every": 10, "value": 2.5}, "engine": "vllm"}, "at most 2"),
        ({"temperature_burst": {"every": 10, "length": 10, "value": 1}}, "must be below every"),
        ({"temperature_burst": {"every": 10, "value": 1}, "steps_per_generation": 4}, "a multiple of 4"),
        # A generation is sampled at one temperature, so this burst would last 4 steps.
        ({"temperature_burst": {"every": 8, "length": 3, "value": 1}, "iterations": 2}, "length: 3 .*multiple of 2"),
        ({"temperature": {}}, "at least 1"),
        ({"temperature": {"-1": 1}}, "greater than or equal to 0"),
        ({"max_new_tokens": {"0": 0}}, "greater than or equal to 1"),
        ({"max_new_tokens": {"0": 1.5}}, "valid integer"),
    ],
)
def test_the_whole_range_is_checked(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        a_rollout_config(**keys)


SCHEDULED = {
    "max_new_tokens": {"0": 4, "8": 12},
    "temperature": {"0": 1.5, "4": 0.5},
    "temperature_burst": {"every": 3, "value": 2.0},
    "generations": 4,
}


def test_the_plan_shows_the_points_and_estimates_the_longest(
    a_run: WriteRun, capsys: pytest.CaptureFixture[str]
) -> None:
    config = a_run(dataserver={"config": None, "url": "http://127.0.0.1:9"}, rollout=SCHEDULED)
    show_plan(load_config(config, RLConfig), config.stem)
    shown = " ".join(capsys.readouterr().err.split())
    assert "temperature 1.5 (step 0), 0.5 (step 4) (2 for 1 of every 3 steps)" in shown
    assert "at most 4 (step 0), 12 (step 8) new tokens after at most 1024" in shown


def test_each_rollout_has_the_temperature_and_length_of_its_iteration(a_run: WriteRun) -> None:
    recipe = a_recipe(a_run(evaluation=None, rollout=SCHEDULED), WrittenServer([0.5] * 1000))
    for step, temperature, longest in ((0, 1.5, 4), (2, 1.0, 6), (3, 2.0, 7), (7, 0.5, 11)):
        recipe.batch(step)
        assert recipe.generation is not None
        rollouts = recipe.generation.rollouts
        assert {each.temperature for each in rollouts} == {temperature}
        assert max(each.tokens for each in rollouts) <= longest
        assert all(each.tokens == longest for each in rollouts if each.was_cut)


def test_debug_samples_as_the_iteration_would(a_run: WriteRun) -> None:
    config = load_config(a_run(rollout={**SCHEDULED, "temperature_burst": None}), RLConfig)
    look = look_at_rollouts(config, "none", DebugRequest(prompts=3, iteration=2, weights="start"))
    assert [group.iteration for group in look.groups] == [2, 2, 3]
    assert [{each.temperature for each in group.completions} for group in look.groups] == [{1.0}, {1.0}, {0.75}]


def test_a_prompt_and_its_longest_completion_must_fit_the_engine(a_run: WriteRun) -> None:
    overrides = ["rollout.engine=vllm", "rollout.importance_correction=none"]
    path = a_run(rollout={"max_new_tokens": {"0": 4, "8": 10**6}, "generations": 4})
    config = load_config(path, RLConfig, overrides)
    assert config.longest_completion == 10**6
    with pytest.raises(ConfigError, match="exceeds the model's context"):
        show_plan(config, "none")
