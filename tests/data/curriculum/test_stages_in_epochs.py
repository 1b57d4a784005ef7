"""Stages of a config that are given in epochs, turned into steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.config.sections.datasets import StageConfig
from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.data.curriculum.stages import check_stages, epochs_in_steps, resolved_stages
from posttrain.errors import ConfigError


def test_a_line_says_which_steps_a_stage_in_epochs_is():
    stages = [
        StageConfig(name="first", until_step=4, mix={"a": 1}),
        StageConfig(name="all", epochs=1.5),
        StageConfig(name="one", epochs=1, mix={"a": 2, "b": 0}),
    ]
    sizes = {"a": 20, "b": 12}
    # 1.5 × 32 rows are 12 steps of 4; 20 rows are 5.
    ends = [stage.until_step for stage in resolved_stages(stages, sizes, 4)]
    assert ends == [4, 16, 21]
    assert list(epochs_in_steps(stages, ends, sizes)) == [
        "stage 'all': 1.5 epochs of 32 rows are steps 5 to 16",
        "stage 'one': 1 epochs of 20 rows are steps 17 to 21",
    ]


@given(st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), min_size=1), st.integers(1, 3))
def test_an_epoch_without_a_mix_is_each_row_once(sizes: dict[str, int], epochs: int):
    stages = resolved_stages([StageConfig(name="all", epochs=epochs)], sizes, 1)
    curriculum = Curriculum(stages, sizes, 1, seed=0)
    drawn = [(row.dataset, row.row) for step in range(curriculum.total_steps) for row in curriculum.step(step)]
    every = [(name, row) for name, size in sizes.items() for row in range(size)]
    assert sorted(drawn) == sorted(every * epochs)


def test_stages_are_checked_before_the_rows_are_counted():
    stages = [StageConfig(name="all", epochs=2), StageConfig(name="some", until_step=1, mix={"a": 1})]
    assert check_stages(stages, ["a", "b"]) == {"a", "b"}
    with pytest.raises(ConfigError, match="there is no data set 'a'"):
        check_stages(stages, ["b"])
    with pytest.raises(ConfigError, match="stage 'some': until_step is 1, but the stage begins at 20"):
        sizes = {"a": 10, "b": 10}
        Curriculum(resolved_stages(stages, sizes, 2), sizes, 2, seed=0)


def test_more_epochs_than_steps_can_be_counted_are_refused():
    with pytest.raises(ConfigError, match="stage 'all': 1e\\+30 epochs are more steps than can be counted"):
        resolved_stages([StageConfig(name="all", epochs=1e30)], {"a": 10}, 1)
