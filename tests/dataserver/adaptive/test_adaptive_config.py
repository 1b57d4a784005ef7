"""What the `adaptive` section accepts and refuses."""

from pathlib import Path
from typing import Any

import pytest
from adaptive_cases import adaptive_config
from pydantic import ValidationError

from dataserver.dataserver_cases import make_config
from posttrain.config.dump import to_yaml
from posttrain.config.load import load_config
from posttrain.dataserver.adaptive.planner import Planner
from posttrain.dataserver.config.adaptive import AdaptiveConfig
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.plan import show_plan

EASY = {"dataset": "easy", "share": {0: 0.5, 200: 0.0}}
STAGES = [{"name": "all", "until_step": 10, "mix": {"hard": 1}}]


def refusal(**section: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        AdaptiveConfig.model_validate(section)
    return str(caught.value)


def config_refusal(datasets: list[str], **keys: Any) -> tuple[tuple[int | str, ...], str]:
    """The location and message of a config's only error."""
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
    assert "the section has no effect; add pools, easy or replay" in refusal(lag=3)


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
    assert "at iteration 100 easy.share is 0.51 and replay.share 0.5, together more than 1" in told


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
    assert "adaptive sampling needs the grades in the journal" in what


def test_trainers_are_told_and_can_compare_it(tmp_path: Path) -> None:
    sections: list[dict[str, Any] | None] = [None, {"pools": {}}, {"pools": {"solved_weight": 0.2}}]
    metas = [adaptive_config(tmp_path, section).meta for section in sections]
    assert [meta.adaptive for meta in metas] == [False, True, True]
    assert len({meta.config_id for meta in metas}) == 3


def test_trainers_are_told_how_the_easy_data_set_is_graded(tmp_path: Path) -> None:
    (stage,) = adaptive_config(tmp_path, {"easy": EASY}).meta.stages
    assert stage.mix == {"hard": 0.75, "more": 0.25}
    assert stage.graders["easy"] == {"string_exact": 1.0}


def test_a_config_can_be_written_and_read_again(tmp_path: Path) -> None:
    config = adaptive_config(tmp_path, {"easy": EASY, "pools": {}}).config
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load_config(path, DataserverConfig, []) == config


def test_a_dry_run_tells_how_rows_are_chosen_and_shows_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {"easy": EASY, "pools": {}, "replay": {"share": {0: 0.25}}}
    loaded = adaptive_config(tmp_path, sections, iteration_stride=2)
    show_plan(loaded.config)
    shown = "".join(capsys.readouterr())
    assert (
        "adaptive: iteration i depends on the grades of iterations up to i − 4\n"
        "  pools: rows with 4 or more grades are kept with probability 0.1 if their mean is at least 1, and with 0.5 "
        "if it is at most 0\n"
        "  easy: 0.5 at iteration 0, then 0 at iteration 200, of the prompts come from easy\n"
        "  replay: 0.25 at iteration 0 of the prompts are rows from earlier iterations\n"
    ) in shown
    assert loaded.config.adaptive is not None
    first = Planner(loaded, loaded.config.adaptive).plan(0, {})[:4]
    assert {row.reason for row in first} == {"curriculum", "easy"}
    for row in first:
        assert loaded.samples.sample_id(row.dataset, row.number) in shown
    assert not loaded.config.journal.path.exists()
