"""`toolkit-eval` on the command line: what it measures, keeps, asks again, and refuses."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from eval_cases import Case
from typer.testing import CliRunner

from forked_command import ForkedCommand
from posttrain.cli.rl_grade import main as rl_grade


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_results_are_those_of_the_answers_and_nothing_is_asked_again(case: Case, run: Callable, json_of: Callable):
    told = json_of(run(case.config, "--json"))
    assert told == case.results()
    assert list(told["tasks"]) == ["apples", "which", "loss"]
    for model in ("base", "tuned"):
        lines = case.lines(model, "apples")
        assert len(lines) == 12 and {line["model"] for line in lines} == {model}
        assert {round(line["reward"] * 3) for line in lines} <= {0, 1, 2, 3}
        found = told["tasks"]["apples"]["measures"]["reward"]["estimates"][model]
        assert (found["prompts"], found["ungraded"]) == (12, 0)
        assert found["value"] == pytest.approx(fmean(line["reward"] for line in lines))
        assert found["low"] <= found["value"] <= found["high"]
    compared = told["tasks"]["apples"]["measures"]["reward"]["comparisons"]
    values = {model: [line["reward"] for line in case.lines(model, "apples")] for model in ("base", "tuned")}
    rises = [now - before for before, now in zip(values["base"], values["tuned"], strict=True)]
    assert list(compared) == ["tuned"]
    assert compared["tuned"]["difference"]["value"] == pytest.approx(fmean(rises))
    assert (case.output / "comparison.md").read_text().count("| tuned |") == 6
    assert "tuned" in (case.output / "report.html").read_text()

    before = files(case.output)
    again = run(case.config)
    assert "loading" not in again.stderr and "answering" not in again.stderr
    assert files(case.output) == before


def test_two_devices_answer_and_score_what_one_does(case: Case, run: Callable):
    run(case.config)
    one = {kind: case.kept(kind) for kind in ("answers", "logprobs")}
    case.output.rename(case.folder / "one")
    assert "loading" in run(case.config, "--set", "sampling.devices=[cpu, cpu]").stderr
    assert {kind: case.kept(kind) for kind in one} == one


def test_other_graders_grade_the_kept_answers(case: Case, run: Callable):
    case.change(tasks={"apples": {"type": "graded", "path": "questions.jsonl", "gold": None, "graders": {"says_a": 1}}})
    run(case.config)
    answers, rewards = case.kept("answers"), [line["reward"] for line in case.lines("base", "apples")]
    case.change(graders={"says_a": {"type": "regex", "pattern": "(?s).*"}})
    again = run(case.config)
    assert "loading" not in again.stderr
    assert case.kept("answers") == answers
    assert [line["reward"] for line in case.lines("base", "apples")] == [1.0] * 12 != rewards


def test_other_sampling_options_or_other_weights_are_other_answers(case: Case, run: Callable):
    one = ("--tasks", "apples", "--limit", "2")
    run(case.config, *one)
    assert len(case.kept("answers")) == 2
    run(case.config, *one, "--set", "sampling.max_new_tokens=4")
    assert len(case.kept("answers")) == 4
    run(case.config, *one)
    assert len(case.kept("answers")) == 4
    weights = case.folder / "runs" / "tuned" / "adapter_model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    run(case.config, *one)
    assert len(case.kept("answers")) == 5


def test_rewards_are_those_of_toolkit_rl_grade(case: Case, run: Callable):
    served = {
        "datasets": {"apples": {"path": "questions.jsonl", "gold": None, "graders": {"says_a": 2, "says_e": 1}}},
        "graders": yaml.safe_load(case.config.read_text())["graders"],
        "stages": [{"name": "one", "until_step": 5, "mix": {"apples": 1}}],
    }
    (case.folder / "data.yaml").write_text(yaml.safe_dump(served))
    case.change(tasks={"apples": {"type": "graded", "config": "data.yaml", "split": "all"}})
    run(case.config)
    mine = {line["sample_id"]: line for line in case.lines("tuned", "apples")}
    answers = next(path for path in (case.output / "kept" / "answers").iterdir() if path.read_text())
    for answers in (case.output / "kept" / "answers").iterdir():
        graded = case.folder / f"{answers.stem}.graded.jsonl"
        done = CliRunner().invoke(rl_grade, [str(case.folder / "data.yaml"), str(answers), str(graded)])
        assert done.exit_code == 0, done.output
        theirs = [json.loads(line) for line in graded.read_text().splitlines()]
        if all(line["completion"] == mine[line["sample_id"]]["completion"] for line in theirs):
            assert [line["reward"] for line in theirs] == [mine[line["sample_id"]]["reward"] for line in theirs]
            return
    raise AssertionError("no kept file has the answers of the model")


@pytest.mark.long
def test_a_killed_evaluation_goes_on_where_it_was(case: Case, run: Callable, tmp_path: Path):
    case.change(sampling={"max_new_tokens": 60, "batch_size": 1})
    run(case.config, "--set", f"output={tmp_path / 'whole'}")
    whole = {path: data for path, data in files(tmp_path / "whole").items() if "/kept/answers/" in path}
    words = ["toolkit-eval", case.config]
    process = ForkedCommand(words, tmp_path / "log", tmp_path / "log")
    try:
        while process.poll() is None and not any((case.output / "kept").rglob("*.partial")):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()
    assert not (case.output / "results.json").exists()
    told = run(case.config).stderr
    assert "apples" in told
    assert list(case.kept("answers").values()) == list(whole.values())
    assert case.results() == json.loads((tmp_path / "whole" / "results.json").read_text())


def test_several_answers_per_prompt_give_pass_at_k(case: Case, run: Callable):
    task = {
        "type": "graded",
        "path": "questions.jsonl",
        "gold": None,
        "graders": {"says_a": 1},
        "n": 3,
        "k": [1, 2],
        "prompts": 4,
        "sampling": {"temperature": 1.0},
    }
    case.change(tasks={"apples": task})
    run(case.config)
    measures = case.results()["tasks"]["apples"]["measures"]
    assert list(measures) == ["reward", "pass@1", "pass@2"]
    rights: dict[str, list[float]] = {}
    for line in case.lines("base", "apples"):
        rights.setdefault(line["sample_id"], []).append(line["reward"])
    assert {len(each) for each in rights.values()} == {3}
    # Of 3 answers with c right ones, the 3 pairs without a right one are C(3 - c, 2) of C(3, 2).
    pairs_without = {0: 3, 1: 1, 2: 0, 3: 0}
    expected = fmean(1 - pairs_without[round(sum(each))] / 3 for each in rights.values())
    assert measures["pass@2"]["estimates"]["base"]["value"] == pytest.approx(expected)
    assert measures["pass@1"]["estimates"]["base"]["value"] == pytest.approx(
        measures["reward"]["estimates"]["base"]["value"]
    )


def test_answers_without_a_grade_are_counted_and_too_many_fail_the_task(case: Case, run: Callable):
    (case.folder / "graders.py").write_text(
        "def score(item):\n    if item.prompt.startswith('Say 3'):\n        raise ValueError('no')\n    return 1.0\n"
    )
    tasks = {"apples": {"type": "graded", "path": "questions.jsonl", "gold": None, "graders": {"mine": 1}}}
    case.change(tasks=tasks, graders={"mine": {"type": "python", "path": "graders.py:score"}}, max_ungraded_share=0.1)
    run(case.config)
    found = case.results()["tasks"]["apples"]["measures"]["reward"]["estimates"]["base"]
    assert (found["value"], found["prompts"], found["ungraded"]) == (1.0, 11, 1)

    case.change(max_ungraded_share=0.05)
    message = run(case.config, expect=1).stderr
    assert "8.3% of the answers have no grade" in message and "2 results missing" in message
    assert case.results()["tasks"]["apples"]["measures"] == {}


def test_a_dry_run_shows_what_is_to_be_done_and_writes_nothing(case: Case, run: Callable):
    before = files(case.folder)
    told = run(case.config, "--dry-run").stderr
    assert "task apples: 12 prompts" in told
    assert "model tuned:" in told and "to do: apples, which, loss" in told
    assert "nothing was asked" in told
    assert files(case.folder) == before


def test_training_configs_on_the_command_line_are_measured_too(case: Case, run: Callable):
    case.change(models=None)
    run(case.config, case.folder / "tuned.yaml", "--tasks", "loss", "--limit", "2")
    assert case.results()["models"] == {"tuned": f"{_model(case)} with the adapter in {case.folder / 'runs' / 'tuned'}"}


def _model(case: Case) -> str:
    return yaml.safe_load((case.folder / "tuned.yaml").read_text())["model"]["name"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--tasks", "aples"], "there is no task 'aples'"),
        (["--baseline", "bse"], "there is no model 'bse'"),
        (["--set", "models={}"], "there are no models"),
        (["--set", "tasks.apples.graders={says_b: 1}"], "there is no grader 'says_b'"),
        (["--set", "tasks.apples.path=nothing.jsonl"], "nothing.jsonl"),
        (["--set", "tasks.apples.k=[2]"], "pass@2 needs at least 2"),
        (["--set", "tasks.apples.n=2"], "the same answer 2 times"),
        (["--set", "tasks.apples.type=grade"], "graded"),
        (["--set", "tasks.which.columns.choices=prompt_", "--tasks", "which"], "must be a list of two or more texts"),
        (["--set", "tasks.apples.cluster=text"], "no column 'text'"),
        (["--set", "tasks.loss.cluster=text"], "no column 'text'"),
        (["--set", "models.tuned.config=nothing.yaml"], "nothing.yaml"),
        (["--set", "models.api={url: 'http://127.0.0.1:9', model: x}", "--tasks", "loss"], "log-probabilities"),
        (["--set", "models.api={url: 'http://example.org/v1', model: x, token_env: KEY}"], "without TLS"),
        (["--set", "models.api={url: 'http://127.0.0.1:9', model: x, request: {api_key: abc}}"], "token_env"),
        (["--set", "models.kept={config: tuned.yaml}"], "choose another one"),
        (["--set", "models.tuned.weights=merged"], "merge"),
        (["--set", "models.tuned.checkpoint='7'"], "7"),
        (["--set", "models.base.checkpoint=latest"], "no checkpoints"),
        (["--set", "models.tuned.model_index=1"], "model"),
        (["--set", "tasks={}"], "tasks"),
        (["--set", "tasks.apples=null"], "tasks.apples"),
        (["--set", "tasks.apples={type: graded, prompts: null}"], "tasks.apples"),
        (["--set", "tasks.apples.validation_fraction=0.1"], "give `prompts`"),
        (["--set", "tasks.apples.sampling.stop=['']"], "stop"),
        (["--set", "tasks.apples.graders={mine: 1}", "--set", "graders.mine={type: python, path: no.py:x}"], "no.py"),
        (["--set", "tasks.which.score=[]"], "score"),
        (["--set", "tasks.loss.path=questions.jsonl"], "questions.jsonl"),
        (["--set", "tasks.apples.sampling.max_new_tokens=600"], "positions"),
        (["--set", "sampling.devices=[cpu, 'cuda:0']"], "beside"),
        (["--set", "max_ungraded_share=2"], "max_ungraded_share"),
        (["--limit", "0"], "--limit"),
        (["nothing.yaml"], "nothing.yaml"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_asked(case: Case, run: Callable, arguments: list[str], reason: str):
    before = files(case.folder)
    result = run(case.config, *arguments, expect=2)
    assert reason in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert files(case.folder) == before


def test_an_output_that_is_a_file_is_refused(case: Case, run: Callable):
    case.change(output="questions.jsonl")
    before = files(case.folder)
    assert "questions.jsonl" in run(case.config, expect=2).stderr
    assert files(case.folder) == before


def test_a_config_whose_name_is_taken_in_the_output_is_refused(case: Case, run: Callable):
    (case.folder / "kept.yaml").write_bytes((case.folder / "tuned.yaml").read_bytes())
    assert "kept.yaml cannot be measured" in run(case.config, case.folder / "kept.yaml", expect=2).stderr
    assert "two models named 'tuned'" in run(case.config, case.folder / "tuned.yaml", expect=2).stderr


def test_two_evaluations_do_not_write_to_one_output_at_once(case: Case, run: Callable):
    lock = "import sys, time; from posttrain.base.locks import *; from pathlib import Path\n"
    hold = f"{lock}with own_output(Path({str(case.output)!r})):\n    print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline()
        assert "is being written" in run(case.config, expect=2).stderr
        holder.kill()
