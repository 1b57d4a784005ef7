"""What a section `adaptive` may say."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dataserver.dataserver_cases import make_config
from toolkit.dataserver.config.adaptive import AdaptiveConfig

EASY = {"dataset": "easy", "share": {0: 0.5, 200: 0.0}}
STAGES = [{"name": "all", "until_step": 10, "mix": {"hard": 1}}]


def refusal(**section: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        AdaptiveConfig.model_validate(section)
    return str(caught.value)


def config_refusal(datasets: list[str], **keys: Any) -> tuple[tuple[int | str, ...], str]:
    """Where a config is wrong, and how."""
    with pytest.raises(ValidationError) as caught:
        make_config(Path("/data"), {name: {} for name in datasets}, stages=STAGES, **keys)
    (error,) = caught.value.errors()
    return error["loc"], error["msg"].removeprefix("Value error, ")


def test_the_defaults_are_those_of_the_docs() -> None:
    adaptive = AdaptiveConfig.model_validate({"pools": {}, "replay": {"share": {"0": 0.25}}})
    assert adaptive.lag == 2
    assert adaptive.easy is None
    assert adaptive.model_dump()["pools"] == {
        "solved_at": 1.0, "unsolved_at": 0.0, "min_grades": 4, "solved_weight": 0.1, "unsolved_weight": 0.5
    }  # fmt: skip
    assert adaptive.model_dump()["replay"] == {"share": {0: 0.25}, "exploration": 0.5, "min_grades": 2}


def test_sampling_is_not_adaptive_unless_told() -> None:
    assert make_config(Path("/data"), {"hard": {}}).adaptive is None


def test_a_section_that_changes_nothing_is_refused() -> None:
    assert "the section changes nothing; give it pools, easy or replay" in refusal(lag=3)


@pytest.mark.parametrize(
    "section",
    [
        {"pools": {}, "lag": 0},
        {"pools": {"solved_weight": 1.5}},
        {"pools": {"min_grades": 0}},
        {"replay": {"share": {}}},
        {"replay": {"share": {-1: 0.5}}},
        {"replay": {"share": {0: 1.5}}},
        {"replay": {"share": {0: 0.5}, "exploration": -1}},
        {"replay": {"share": 0.5}},
    ],
)
def test_numbers_out_of_their_range_are_refused(section: dict[str, Any]) -> None:
    assert refusal(**section)


def test_a_row_cannot_be_solved_and_unsolved_at_once() -> None:
    assert "set unsolved_at below solved_at" in refusal(pools={"solved_at": 0.5, "unsolved_at": 0.5})


def test_shares_may_fill_all_slots_and_no_more() -> None:
    half = {"share": {0: 0.0, 100: 0.5}}
    AdaptiveConfig.model_validate({"easy": {"dataset": "easy", "share": {0: 0.7, 200: 0.3}}, "replay": half})
    told = refusal(easy={"dataset": "easy", "share": {0: 0.7, 200: 0.32}}, replay=half)
    assert "at iteration 100 easy.share is 0.51 and replay.share 0.5, together more than all slots" in told


def test_an_easy_data_set_needs_no_stage() -> None:
    make_config(Path("/data"), {"hard": {}, "easy": {}}, stages=STAGES, adaptive={"easy": EASY})


def test_a_data_set_that_neither_a_stage_nor_easy_names_is_told() -> None:
    where, what = config_refusal(["hard", "easy", "left"], adaptive={"easy": EASY})
    assert where == ("stages",)
    assert what == "no stage uses left; add it to a stage's mix or remove it from datasets"


def test_the_easy_data_set_must_be_there() -> None:
    where, what = config_refusal(["hard"], adaptive={"easy": EASY})
    assert where == ("adaptive", "easy", "dataset")
    assert what == "there is no data set 'easy'; known: hard"


def test_adaptive_sampling_needs_the_journal() -> None:
    where, what = config_refusal(["hard"], adaptive={"pools": {}}, journal={"enabled": False})
    assert where == ("journal", "enabled")
    assert "adaptive sampling looks at the grades in the journal" in what
