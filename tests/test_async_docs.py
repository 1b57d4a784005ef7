"""The page about rollouts ahead of training: its config is valid, its numbers and its picture are the schedule's."""

import re
from pathlib import Path

import pytest
import yaml

from posttrain.rl.config import RLConfig
from posttrain.rl.schedule import RolloutSchedule
from test_dataserver_docs import blocks

PAGE = (Path(__file__).parent.parent / "docs" / "async-rollouts.md").read_text(encoding="utf-8")
PICTURES = re.findall(r"staleness: (\d)\n(engine .*)\n(graders .*)\n(trainer .*)\n", PAGE)
LEARN, GENERATE, GRADE = 8, 8, 4  # columns of the picture


def test_the_config_makes_a_generation_ahead_and_corrects_each_token() -> None:
    (block,) = blocks(PAGE, "yaml")
    config = RLConfig.model_validate(yaml.safe_load(block), context={"base_dir": Path.cwd()})

    assert config.rollout.is_apart
    correction = config.rollout.correction
    assert (correction.kind, correction.floor, correction.limit) == ("token_mask", 0.5, 2.0)


def test_the_table_of_versions_is_the_schedule_s() -> None:
    rows = re.findall(r"^\| ([12]) \| ([012]) \| (.*) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for stride, staleness, versions in rows:
        schedule = RolloutSchedule(8, 4, steps_per_generation=int(stride), staleness=int(staleness))
        assert [schedule.version_of(number) for number in range(6)] == [int(each) for each in versions.split(" | ")]


@pytest.mark.parametrize(("staleness", "engine", "graders", "trainer"), PICTURES)
def test_in_the_picture_everything_begins_as_soon_as_it_can(
    staleness: str, engine: str, graders: str, trainer: str
) -> None:
    schedule = RolloutSchedule(8, 4, staleness=int(staleness))
    made = [(each.start(), *map(int, each.groups())) for each in re.finditer(r"\[g(\d) W(\d) \]", engine)]
    graded = {int(each[1]): each.start() for each in re.finditer(r"\[r(\d)\]", graders)}
    began = {int(each[1]): each.start() for each in re.finditer(r"\[step (\d)\]", trainer)}

    assert [number for _, number, _ in made] == list(range(len(made)))
    free = first = made[0][0]
    for start, number, version in made:
        assert version == schedule.version_of(number)
        weights = first if version == 0 else began[version - 1] + LEARN
        assert start == max(free, weights)
        free = start + GENERATE
        assert graded.get(number, free) == free
    for step, start in began.items():
        rewards = graded[step] + GRADE
        assert start == max(rewards, began[step - 1] + LEARN if step else 0)


def test_there_is_a_picture_for_each_staleness() -> None:
    assert [picture[0] for picture in PICTURES] == ["0", "1", "2"]
