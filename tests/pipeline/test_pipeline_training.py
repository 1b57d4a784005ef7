"""Training steps: what they start from, what is checked before, and what skipping one does."""

import json
import re
import sys
from collections.abc import Callable

import pytest
from typer.testing import Result

from pipeline.pipeline_cases import Case
from posttrain.config.load import load_config
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.rl.config import RLConfig

Run = Callable[..., Result]
Plan = Callable[..., dict[str, str]]


def test_dpo_goes_on_with_the_adapter_and_its_reference_is_where_it_starts(trained: Case) -> None:
    config = load_config(trained.folder_of("dpo") / "config.yaml", DPOConfig)
    assert config.model.adapter == trained.folder_of("sft")
    rows = [json.loads(line) for line in (trained.folder_of("dpo") / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)  # ln 2: policy and reference are the same model


def test_what_starts_from_a_merged_model_trains_a_new_adapter_on_it(trained: Case) -> None:
    config = load_config(trained.folder_of("grpo") / "config.yaml", RLConfig)
    assert config.model.name == str(trained.folder_of("dpo.merged"))
    assert config.model.adapter is None


def test_a_skipped_step_is_replaced_by_where_it_would_have_started(copied: Case, run: Run) -> None:
    from posttrain.pipeline.config import PipelineConfig
    from posttrain.pipeline.pipeline import Wanted, open_context

    config = load_config(copied.config, PipelineConfig)
    context = open_context(config, "chain", Wanted(skip=["dpo"]))
    assert context.model("dpo").adapter == context.model("sft").adapter
    context = open_context(config, "chain", Wanted(skip=["sft", "dpo"]))
    assert context.model("dpo").base == context.base().base
    said = run(copied, "--skip", "dpo", "--dry-run").output
    assert "skipped" in said


def test_a_step_that_is_not_enabled_is_skipped(copied: Case, run: Run) -> None:
    copied.change("chain.yaml", steps={"dpo": {**STEPS["dpo"], "enabled": False}})
    assert "skipped" in run(copied, "--dry-run").output


def test_a_skipped_step_that_is_measured_has_an_empty_row(copied: Case, run: Run) -> None:
    run(copied, "--skip", "grpo", "--until", "scores")
    assert "grpo" not in copied.report()["evaluations"]["scores"]["models"]
    page = re.sub(r"<[^>]*>", " ", (copied.output / "report.html").read_text())
    assert re.search(r"grpo(\s+–)+\s+left out", page)


def test_a_decision_about_a_skipped_step_is_refused(copied: Case, run: Run) -> None:
    said = run(copied, "--skip", "grpo", "--dry-run", expect=2).output
    assert "steps.choice.take" in said and "skip choice" in said.replace("\n", " ")


def test_a_step_that_was_killed_before_it_was_recorded_runs_again_over_what_it_left(copied: Case, run: Run) -> None:
    [record] = (copied.output / ".steps").glob("dpo.merged-*.json")
    kept = json.loads(record.read_text())
    record.write_text(json.dumps({**kept, "made": [], "digest": None}))
    run(copied)
    assert copied.results() == {**dict.fromkeys(copied.results(), "kept"), "dpo.merged": "done"}


def test_a_merge_of_a_decision_for_the_base_passes_it_on(copied: Case, run: Run, plan: Plan) -> None:
    choice = {"run": "decide", "of": "scores", "take": "sft", "over": "base", "task": "fruits", "by": 1.0}
    copied.change("chain.yaml", steps={"choice": choice, "merged": {"run": "merge", "of": "choice"}})
    run(copied)
    assert copied.report()["decisions"]["choice"]["winner"] == "base"
    assert copied.results()["merged"] == "done"
    more = {"run": "dpo", "config": "dpo/dpo.yaml", "start": {"from": "choice", "as": "merged"}}
    copied.change("chain.yaml", steps={"more": more})
    assert plan(copied)["more"] == "waits"


def test_a_held_out_question_in_an_earlier_turn_is_found(copied: Case, run: Run) -> None:
    question = json.loads((copied.folder / "questions.jsonl").read_text().splitlines()[0])["prompt"]
    turns = [("user", question), ("assistant", "Plums."), ("user", "Thanks."), ("assistant", "Gladly.")]
    row = {"messages": [{"role": role, "content": content} for role, content in turns]}
    (copied.folder / "sft/a.jsonl").write_text(json.dumps(row) + "\n")
    assert "questions.jsonl:1 equals sft" in run(copied, "--dry-run", expect=2).output.replace("\n", " ")


def test_a_held_out_question_in_a_file_that_a_step_makes_fails_the_step_that_would_train_on_it(
    copied: Case, run: Run
) -> None:
    code = "import sys, pathlib; pathlib.Path(sys.argv[2], 'rows.jsonl').write_text(open(sys.argv[1]).read())"
    questions = [json.loads(line)["prompt"] for line in (copied.folder / "questions.jsonl").read_text().splitlines()]
    rows = "".join(json.dumps({"prompt": question, "completion": "plums"}) + "\n" for question in questions)
    (copied.folder / "source.jsonl").write_text(rows)
    make = {
        "run": "command",
        "argv": [sys.executable, "-c", code, str(copied.folder / "source.jsonl"), "{out}"],
        "outputs": ["rows.jsonl"],
    }
    sft = {
        "run": "sft",
        "config": "sft/sft.yaml",
        "inputs": {"datasets.a.path": {"from": "make", "file": "rows.jsonl"}},
    }
    copied.change("chain.yaml", steps={"make": make, "sft": sft})
    said = run(copied, "--until", "sft", expect=1).output
    assert copied.results() == {"make": "done", "sft": "failed"}
    assert "allow_overlap" in said
    copied.change(
        "chain.yaml", steps={"sft": {**sft, "inputs": {"datasets.a.path": {"from": "make", "file": "row.jsonl"}}}}
    )
    assert "'row.jsonl', only rows.jsonl" in run(copied, expect=2).output.replace("\n", " ")


STEPS = {
    "dpo": {"run": "dpo", "config": "dpo/dpo.yaml", "start": {"from": "sft", "as": "adapter"}},
    "grpo": {"run": "rl-train", "config": "grpo/grpo.yaml", "start": {"from": "dpo", "as": "merged"}},
}

CHOICE = {"run": "decide", "of": "scores", "take": "grpo", "over": "sft", "task": "fruits"}
SCORES = {"run": "eval", "config": "eval.yaml", "models": {"base": "base", "sft": "sft", "dpo": "dpo", "grpo": "grpo"}}

WRONG: dict[str, tuple[Callable[[Case], None], list[str]]] = {
    "a typo in the last config": (lambda case: case.change("grpo/grpo.yaml", rolout={}), ["grpo.yaml", "rollout"]),
    "a file of data that is missing": (lambda case: (case.folder / "dpo/pairs.jsonl").unlink(), ["pairs.jsonl"]),
    "a dataserver's file that is missing": (lambda case: (case.folder / "grpo/b.jsonl").unlink(), ["b.jsonl"]),
    "another length": (lambda case: case.change("dpo/dpo.yaml", chat={"max_length": 200}), ["steps.dpo.start", "200"]),
    "another rank": (lambda case: case.change("dpo/dpo.yaml", lora={"r": 5}), ["steps.dpo.start", "merged"]),
    "several models": (
        lambda case: case.change("dpo/dpo.yaml", model=None, models=[{"name": "a"}, {"name": "b"}]),
        ["models"],
    ),
    "a step that makes no model": (
        lambda case: case.change("chain.yaml", steps={"dpo": {**STEPS["dpo"], "start": {"from": "scores"}}}),
        ["scores"],
    ),
    "a decision by a task that is not there": (
        lambda case: case.change("chain.yaml", steps={"choice": {**CHOICE, "task": "fruit"}}),
        ["steps.choice", "fruits"],
    ),
    "a decision by a measure that is not there": (
        lambda case: case.change("chain.yaml", steps={"choice": {**CHOICE, "measure": "rewards"}}),
        ["steps.choice.measure", "reward"],
    ),
    "a baseline that is not there": (
        lambda case: case.change("chain.yaml", steps={"scores": {**SCORES, "baseline": "stf"}}),
        ["steps.scores.baseline", "stf"],
    ),
    "a decision about what is not measured": (
        lambda case: case.change(
            "chain.yaml",
            steps={"choice": {"run": "decide", "of": "scores", "take": "dpo.merged", "over": "sft", "task": "fruits"}},
        ),
        ["dpo.merged"],
    ),
    "an export without llama.cpp": (
        lambda case: case.change("chain.yaml", steps={"file": {"run": "export", "of": "dpo", "type": "q4_k_m"}}),
        ["llama-quantize"],
    ),
    "a held-out prompt that is trained on": (
        lambda case: (case.folder / "questions.jsonl").write_text('{"prompt": "  SAY one ", "answer": "x"}\n'),
        ["questions.jsonl:1", "pairs.jsonl:1", "allow_overlap"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_anywhere_is_told_before_anything_runs(copied: Case, run: Run, name: str) -> None:
    change, words = WRONG[name]
    change(copied)
    before = (copied.output / "report.json").stat().st_mtime_ns
    said = run(copied, expect=2).output.replace("\n", " ")
    assert all(word in said for word in words), said
    assert (copied.output / "report.json").stat().st_mtime_ns == before


def test_an_overlap_that_is_allowed_is_told_and_reported(copied: Case, run: Run) -> None:
    (copied.folder / "questions.jsonl").write_text('{"prompt": "  SAY one ", "answer": "x"}\n')
    copied.change("chain.yaml", allow_overlap=True)
    assert "pairs.jsonl:1" in run(copied, "--dry-run").output


@pytest.mark.long
def test_an_edit_in_the_middle_trains_what_follows_and_a_kill_costs_nothing(copied: Case, run: Run) -> None:
    copied.change("dpo/dpo.yaml", training={"learning_rate": 2e-2})
    run(copied)
    assert copied.results() == {
        "sft": "kept",
        **dict.fromkeys(["dpo", "dpo.merged", "grpo", "scores", "choice"], "done"),
    }
    run(copied)
    assert set(copied.results().values()) == {"kept"}
    run(copied, "--rerun", "dpo")
    # The same bytes again, so that nothing below it runs.
    assert copied.results() == {**dict.fromkeys(copied.results(), "kept"), "dpo": "done"}
