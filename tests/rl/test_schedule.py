"""Which generation serves which optimizer step: worked examples and properties of all shapes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import ConfigError
from posttrain.rl.config import RLConfig
from posttrain.rl.schedule import RolloutSchedule, require_fit, require_within_curriculum
from rl.rl_runs import WriteRun

SHAPES = st.builds(
    lambda groups, size, parts, passes: RolloutSchedule(groups * size, size, parts, passes),
    st.integers(1, 6),
    st.integers(2, 8),
    st.integers(1, 4),
    st.integers(1, 3),
)


@pytest.mark.parametrize(
    ("steps_per_generation", "passes", "prompts", "stride", "parts"),
    [
        # (generation, part) of each of eight optimizer steps, of 8 completions, 4 per prompt.
        (1, 1, 2, 1, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0)]),
        (2, 1, 4, 2, [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]),
        (1, 2, 2, 2, [(0, 0), (0, 0), (1, 0), (1, 0), (2, 0), (2, 0), (3, 0), (3, 0)]),
        (2, 2, 4, 4, [(0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1), (1, 0), (1, 1)]),
    ],
)
def test_a_generation_serves_its_steps_part_by_part_and_pass_by_pass(
    steps_per_generation: int, passes: int, prompts: int, stride: int, parts: list[tuple[int, int]]
) -> None:
    schedule = RolloutSchedule(8, 4, steps_per_generation, passes)
    assert (schedule.prompts_per_iteration, schedule.iteration_stride) == (prompts, stride)
    assert [(schedule.generation_of(step), schedule.part_of(step)) for step in range(8)] == parts


@given(SHAPES, st.integers(0, 40))
def test_every_part_of_a_generation_is_trained_once_in_each_pass(schedule: RolloutSchedule, generation: int) -> None:
    first = schedule.iteration_of(generation)
    served = range(first, first + schedule.iteration_stride)
    assert [schedule.starts_generation(step) for step in served] == [True] + [False] * (len(served) - 1)
    assert {schedule.generation_of(step) for step in served} == {generation}
    parts = [schedule.part_of(step) for step in served]
    assert parts == list(range(schedule.steps_per_generation)) * schedule.passes


@given(SHAPES, st.integers(0, 60))
def test_as_many_generations_are_made_as_begin_before_a_step(schedule: RolloutSchedule, step: int) -> None:
    assert schedule.generations_until(step) == sum(schedule.starts_generation(each) for each in range(step))


@pytest.mark.parametrize(("rows", "nearest"), [(6, "4 or 8"), (3, "4"), (9, "8 or 12")])
def test_a_step_that_would_cut_a_group_is_refused_with_the_nearest_that_do_not(rows: int, nearest: str) -> None:
    with pytest.raises(ConfigError, match=rf"training\.rows_per_step: {rows} .*choose {nearest}, or change"):
        RolloutSchedule(rows, 4)


def test_what_falls_into_the_middle_of_a_generation_is_refused() -> None:
    schedule = RolloutSchedule(8, 4, 2, 2)
    schedule.require_aligned(8, "run.save_every")
    schedule.require_resumable(4)
    with pytest.raises(ConfigError, match=r"run\.save_every: 6 falls in the middle .*choose a multiple of 4"):
        schedule.require_aligned(6, "run.save_every")
    with pytest.raises(ConfigError, match=r"step 6 lies in the middle .* resume from one of step 4 or 8"):
        schedule.require_resumable(6)


def test_a_dataserver_of_another_shape_is_refused_with_the_numbers_that_fit() -> None:
    schedule = RolloutSchedule(8, 4, 2, 1)
    schedule.require_same_shape(4, 2)
    for prompts, stride in ((2, 2), (4, 1)):
        with pytest.raises(ConfigError, match="prompts_per_iteration: 4 and iteration_stride: 2"):
            schedule.require_same_shape(prompts, stride)


def test_training_ends_with_the_curriculum_unless_it_may_go_on() -> None:
    require_within_curriculum(8, 8)
    require_within_curriculum(9, 8, beyond_last_stage=True)
    with pytest.raises(ConfigError, match=r"max_steps: 9 is beyond .* ends at 8"):
        require_within_curriculum(9, 8)


@pytest.mark.parametrize(
    ("changes", "processes", "told"),
    [
        ({}, 3, r"8 is not a multiple of training\.micro_batch_size 4 × 3 processes; choose a multiple of 12"),
        ({"run": {"save_every": 3}, "rollout": {"iterations": 2}}, 1, r"run\.save_every: 3 falls in the middle"),
        ({"evaluation": {"every": 3}, "rollout": {"iterations": 2}}, 1, r"evaluation\.every: 3 falls in the middle"),
    ],
)
def test_a_config_whose_numbers_do_not_fit_is_refused(
    a_run: WriteRun, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], processes: int, told: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    with pytest.raises(ConfigError, match=told):
        RolloutSchedule.of(load_config(a_run(**changes), RLConfig))


# Grades of a completion of 8 tokens come up to two generations after those of a short one.
SEGMENTS = {"staleness": 1, "max_new_tokens": 8, "segment_tokens": 3}
SUBSTITUTE: dict[str, Any] = {"filters": [{"kind": "reward_spread"}], "rejected": "substitute", "attempts": 3}


@pytest.mark.parametrize(
    ("data", "rollout", "told"),
    [
        ({"adaptive": {"lag": 2, "pools": {}}}, {"staleness": 1}, None),
        ({"adaptive": {"lag": 2, "pools": {}}}, {"staleness": 2}, r"staleness: 2 .*adaptive\.lag: 3"),
        ({"adaptive": {"lag": 4, "pools": {}}}, SEGMENTS, None),
        ({"adaptive": {"lag": 3, "pools": {}}}, SEGMENTS, r"in 3 segments .* set adaptive\.lag: 4"),
        ({"substitutes": 3}, SUBSTITUTE, None),
        ({"substitutes": 2}, SUBSTITUTE, r"rollout\.attempts: 3, but the dataserver has 2 substitutes"),
        ({"substitutes": 0}, {**SUBSTITUTE, "rejected": "drop"}, None),
    ],
)
def test_a_dataserver_that_cannot_serve_ahead_or_has_too_few_substitutes_is_refused(
    a_run: WriteRun, data: dict[str, Any], rollout: dict[str, Any], told: str | None
) -> None:
    path = a_run(data=data, rollout=rollout)
    config = load_config(path, RLConfig)
    meta = Loaded.read(load_config(path.with_name("data.yaml"), DataserverConfig), print).meta
    if told is None:
        assert require_fit(config, RolloutSchedule.of(config), meta) == 8
    else:
        with pytest.raises(ConfigError, match=told):
            require_fit(config, RolloutSchedule.of(config), meta)
