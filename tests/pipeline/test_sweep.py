"""Sweeps: every combination with every seed, compared over the same prompts; what follows starts from the best."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from pipeline.pipeline_cases import Case
from posttrain.config.load import load_config
from posttrain.evaluate.statistics.scores import Scores
from posttrain.pipeline.config import PipelineConfig
from posttrain.pipeline.pipeline import Wanted, open_context
from posttrain.pipeline.steps.choose import compared_settings, over_seeds

Run = Callable[..., Result]
SWEEP = {
    "step": "sft",
    "grid": {"training.learning_rate": [1e-2, 2e-2]},
    "seeds": [0, 1],
    "choose": {"config": "choosing.yaml", "task": "fruits"},
}
CELLS = [f"sft[learning_rate={rate},seed={seed}]" for rate in (0.01, 0.02) for seed in (0, 1)]


def rewards(*values: float | None) -> Scores:
    return Scores({str(number): value for number, value in enumerate(values)}, ungraded=values.count(None))


def test_each_combination_is_trained_with_each_seed_and_measured(copied: Case) -> None:
    add_sweep(copied)
    steps = load_config(copied.config, PipelineConfig).all_steps()
    assert [name for name in steps if name.startswith("sft[")] == CELLS
    assert steps["sft.scores"].needs == tuple(CELLS)
    assert steps["sft"].needs == (*CELLS, "sft.scores")
    assert steps[CELLS[3]].set == {"training.learning_rate": 0.02, "training.seed": 1}
    assert steps["dpo"].needs == ("sft",)


def test_keys_that_end_alike_and_long_values_have_names_of_their_own(copied: Case) -> None:
    add_sweep(copied, grid={"lora.r": [4, 8], "other.r": [[1] * 40, [2] * 40]}, seeds=[0])
    names = [name for name in load_config(copied.config, PipelineConfig).all_steps() if name.startswith("sft[")]
    assert len(names) == 4 and names[0].startswith("sft[lora.r=4,other.r=")
    assert max(map(len, names)) < 60


def test_prompts_of_one_group_count_as_one() -> None:
    """Sixty prompts of two texts differ alike; with two texts nothing can be told."""
    one, other = rewards(*[1.0] * 60), rewards(*[0.0] * 60)
    alone = compared_settings({"a": "x", "b": "y"}, {"a": one, "b": other}, {"a": 1.0, "b": 1.0})
    assert alone["rows"][1]["verdict"] == "worse"
    clusters = {str(number): f"text {number % 2}" for number in range(60)}
    grouped = compared_settings({"a": "x", "b": "y"}, {"a": one, "b": other}, {"a": 1.0, "b": 1.0}, clusters)
    assert grouped["rows"][1]["verdict"] != "worse"


def test_a_sweep_that_is_skipped_trains_no_cell(copied: Case) -> None:
    add_sweep(copied)
    context = open_context(load_config(copied.config, PipelineConfig), "chain", Wanted(skip=["sft"]))
    assert {*CELLS, "sft.scores", "sft"} <= context.skipped
    assert context.model("dpo").base == context.base().base


def test_settings_are_compared_by_means_over_seeds_and_the_best_seed_is_taken() -> None:
    scores = {
        "a0": rewards(1.0, 0.0, 0.0, 0.0),
        "a1": rewards(0.0, 0.0, 0.0, 0.0),
        "b0": rewards(1.0, 0.0, 1.0, 0.0),
        "b1": rewards(1.0, 1.0, 1.0, 0.0),
    }
    points = {"a0": "rate 1", "a1": "rate 1", "b0": "rate 2", "b1": "rate 2"}
    found = compared_settings(points, scores, {"a0": 1.0, "a1": 3.0, "b0": 10.0, "b1": 10.0})
    assert (found["best"], found["winner"]) == ("rate 2", "b1")
    one, two = found["rows"]
    assert (one["mean"], two["mean"]) == (0.125, 0.625)
    assert (one["seconds"], one["seeds"]) == (2.0, 2)
    # Two seeds at 0.25 and 0: t(1) = 12.706 times the deviation 0.17678 over √2.
    assert one["half_width"] == pytest.approx(12.706 * 0.125, rel=1e-4)
    assert one["difference"] == -0.5
    assert "rate 1" in found["sentence"]  # four prompts tell nothing apart, and it is the cheaper one


def test_with_one_seed_nothing_is_known_of_chance() -> None:
    found = compared_settings({"a": "x", "b": "y"}, {"a": rewards(0.0), "b": rewards(1.0)}, {"a": 1.0, "b": 1.0})
    assert "one seed" in found["sentence"]


def test_the_lowest_loss_is_the_best() -> None:
    scores = {"a": Scores({"1": 2.0}, 0, "loss"), "b": Scores({"1": 1.5}, 0, "loss")}
    assert compared_settings({"a": "x", "b": "y"}, scores, {"a": 1.0, "b": 1.0})["winner"] == "b"


def test_a_prompt_without_a_value_in_one_seed_has_none_in_the_mean() -> None:
    together = over_seeds([rewards(1.0, None), rewards(0.0, 1.0)])
    assert together.values == {"0": 0.5, "1": None}
    assert together.ungraded == 1


def add_sweep(case: Case, **changes: object) -> None:
    text = (case.folder / "eval.yaml").read_text().replace("questions.jsonl", "choosing.jsonl")
    (case.folder / "choosing.yaml").write_text(text)
    rows = (case.folder / "questions.jsonl").read_text().replace("fruits", "colours")
    (case.folder / "choosing.jsonl").write_text(rows)
    case.change("chain.yaml", sweep={**SWEEP, **changes})


def test_prompts_that_a_choice_is_made_by_are_no_test(copied: Case, run: Run) -> None:
    add_sweep(copied)
    (copied.folder / "choosing.jsonl").write_text((copied.folder / "questions.jsonl").read_text())
    said = run(copied, "--dry-run", expect=2).output
    assert "questions.jsonl:1" in said and "choosing.jsonl:1" in said


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step": "stf"}, ["sweep.step", "stf"]),
        ({"step": "scores"}, ["sweep.step", "scores"]),
        ({"grid": {}, "seeds": [0]}, ["sweep"]),
        ({"seeds": []}, ["sweep.seeds"]),
        ({"grid": {"training.seed": [1, 2]}}, ["sweep.grid", "seeds"]),
        ({"seeds": [1, 1]}, ["twice"]),
        ({"choose": {"config": "choosing.yaml", "task": "fruit"}}, ["fruit", "fruits"]),
        ({"grid": {"training.learning_rat": [1e-3, 1e-2]}}, ["learning_rat", "learning_rate"]),
        ({"choose": {"config": "choosing.yaml"}}, ["sweep.choose.task"]),
    ],
)
def test_a_wrong_sweep_is_refused_before_anything_runs(copied: Case, run: Run, changes: dict, words: list[str]) -> None:
    add_sweep(copied, **changes)
    said = run(copied, "--dry-run", expect=2).output
    assert all(word in said for word in words), said


@pytest.mark.long
def test_what_follows_starts_from_the_best_and_a_cell_that_fails_is_left_out(copied: Case, run: Run) -> None:
    add_sweep(copied, grid={"training.learning_rate": [1e-2], "training.optimizer": ["adamw", "adamw_8bit"]}, seeds=[0])
    run(copied, "--until", "dpo", expect=1)  # the second optimizer needs a CUDA device
    found = copied.results()
    assert list(found.values()).count("failed") == 1
    assert found["sft"] == found["dpo"] == "done"
    report = copied.report()
    [choice] = report["choices"].values()
    assert len(choice["rows"]) == 1
    dpo = next(each for each in report["steps"] if each["step"] == "dpo")
    assert dpo["starts_from"] == [{"step": "sft", "as": "adapter"}]
    assert choice["winner"] in (Path(copied.folder_of("dpo")) / "config.yaml").read_text()
