"""Which graders judge a data set in each stage."""

from pathlib import Path

from dataserver.dataserver_cases import make_config
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.graders.contains import Contains
from posttrain.dataserver.graders.string_exact import StringExact
from posttrain.dataserver.grading.questions import graders_in_use, graders_of, own_plan, stage_plan
from posttrain.dataserver.grading.rewards import GradingPlan
from posttrain.dataserver.runtime import describe


def config() -> DataserverConfig:
    sums = {"graders": {"string_exact": 3, "contains": 1}, "gates": ["cap"], "on_missing_score": "zero"}
    stages = [
        {"name": "first", "until_step": 2, "mix": {"sums": 1, "words": 3, "rest": 0}},
        {"name": "second", "until_step": 4, "mix": {"sums": 1}, "grading": {"sums": {"graders": {"strict": 2}}}},
        {"name": "third", "until_step": 6, "mix": {"sums": 1}, "grading": {"sums": {"gates": []}}},
        {
            "name": "fourth",
            "until_step": 8,
            "mix": {"sums": 1},
            "grading": {"sums": {"graders": {"contains": 1, "strict": 0}, "gates": ["tidy"]}},
        },
        {"name": "fifth", "until_step": 9, "mix": {"words": 1}, "grading": {"words": {}}},
    ]
    graders = {
        "cap": {"type": "completion_length_cap", "max_tokens": 9},
        "tidy": {"type": "regex", "pattern": ".+"},
        "strict": {"type": "string_exact", "ignore_case": False},
        "unused": {"type": "json_valid"},
    }
    return make_config(Path("/data"), {"sums": sums, "words": {}, "rest": {}}, stages=stages, graders=graders)


def test_a_stage_replaces_what_it_names_and_keeps_the_rest() -> None:
    plans = [stage_plan(config(), index, "sums") for index in range(4)]
    assert plans == [
        GradingPlan({"string_exact": 0.75, "contains": 0.25}, ("cap",), "zero"),
        GradingPlan({"strict": 1.0}, ("cap",), "zero"),
        GradingPlan({"string_exact": 0.75, "contains": 0.25}, (), "zero"),
        GradingPlan({"contains": 1.0, "strict": 0.0}, ("tidy",), "zero"),
    ]


def test_an_empty_section_replaces_nothing() -> None:
    assert stage_plan(config(), 4, "words") == own_plan(config(), "words")


def test_held_out_rows_are_judged_alike_in_all_stages() -> None:
    assert own_plan(config(), "sums") == stage_plan(config(), 0, "sums")


def test_the_graders_in_use_are_those_that_something_names() -> None:
    found = graders_in_use(config())
    assert set(found) == {"string_exact", "contains", "cap", "strict", "tidy"}
    assert found["string_exact"] == StringExact()
    assert found["contains"] == Contains()
    assert found["strict"] == StringExact(ignore_case=False)


def test_the_golds_of_a_data_set_are_for_every_grader_that_may_judge_it() -> None:
    assert graders_of(config(), "sums") == ("cap", "contains", "string_exact", "strict", "tidy")
    assert graders_of(config(), "words") == ("string_exact",)


def test_the_description_tells_of_each_stage_the_mix_and_the_graders() -> None:
    meta = describe(config(), "id", {}, {}, graders_in_use(config()))
    first, second = meta.stages[:2]
    assert (first.from_iteration, first.until_iteration, second.from_iteration) == (0, 2, 2)
    assert first.mix == {"sums": 0.25, "words": 0.75, "rest": 0.0}
    assert first.graders == {"sums": {"string_exact": 0.75, "contains": 0.25}, "words": {"string_exact": 1.0}}
    assert first.gates == {"sums": ["cap"], "words": []}
    assert second.graders == {"sums": {"strict": 1.0}}
    assert meta.graders["strict"] == "string_exact"
    assert meta.total_iterations == 9
