"""Task `lm_eval`: lm_eval's own metrics of the answers that toolkit-predict gives, and local files alone.

`make test-extras` runs the tests that need the package.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from eval_cases import CHOICES, QUESTIONS, Case
from typer.testing import Result

from posttrain.config.load import load_config
from posttrain.errors import ConfigError, DataError
from posttrain.evaluate.config import EvalConfig

needs_lm_eval = pytest.mark.extras

SAYS_A = {
    "task": "says_a",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "questions.jsonl"}},
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{prompt}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": ["e"], "max_gen_toks": 5},
    "filter_list": [
        {"name": "first_a", "filter": [{"function": "regex", "regex_pattern": "(a)"}, {"function": "take_first"}]}
    ],
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
WHICH = {
    "task": "which",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "choices.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{prompt}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{gold}}",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}


def write_tasks(case: Case, **tasks: dict[str, Any]) -> None:
    """Write the tasks' files into a folder of their own, beside copies of their data, and evaluate these alone."""
    folder = case.folder / "tasks"
    folder.mkdir(exist_ok=True)
    for name in ("questions", "choices"):
        (folder / f"{name}.jsonl").write_bytes((case.folder / f"{name}.jsonl").read_bytes())
    for name, task in tasks.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task, sort_keys=False))
    case.change(tasks={name: {"type": "lm_eval", "path": f"tasks/{name}.yaml"} for name in tasks})


def values(case: Case, task: str, measure: str, model: str = "tuned") -> dict[str, float]:
    return json.loads((case.output / model / f"{task}.scores.json").read_text())["scores"][measure]["values"]


@needs_lm_eval
def test_its_metrics_are_those_of_the_answers_that_a_graded_task_gets(case: Case, run: Callable[..., Result]) -> None:
    graded = {"type": "graded", "path": "questions.jsonl", "gold": None, "graders": {"says_a": 1}}
    asked = {"sampling": {"max_new_tokens": 5, "stop": ["e"]}}
    write_tasks(case, says=SAYS_A)
    tasks = yaml.safe_load(case.config.read_text())["tasks"]
    case.change(tasks={**tasks, "apples": {**graded, **asked}})
    run(case.config)
    for model in ("base", "tuned"):
        ours = {line["prompt"]: float("a" in line["completion"]) for line in case.lines(model, "apples")}
        theirs = values(case, "says", "exact_match", model)
        assert {row["prompt"]: theirs[str(number)] for number, row in enumerate(QUESTIONS)} == ours
    assert len({*ours.values()}) == 2  # else the comparison would show nothing


@needs_lm_eval
def test_choices_are_those_of_our_own_task(case: Case, run: Callable[..., Result]) -> None:
    write_tasks(case, theirs=WHICH)
    tasks = yaml.safe_load(case.config.read_text())["tasks"]
    case.change(tasks={**tasks, "ours": {"type": "choice", "path": "choices.jsonl"}})
    run(case.config)
    for measure in ("acc", "acc_norm"):
        ours, theirs = values(case, "ours", measure), values(case, "theirs", measure)
        # Our task counts lines from 1.
        assert {str(number + 1): theirs[str(number)] for number in range(len(CHOICES))} == ours


@needs_lm_eval
def test_examples_come_before_the_question_as_turns(case: Case) -> None:
    shots = {**SAYS_A, "fewshot_split": "test", "fewshot_config": {"sampler": "first_n"}, "description": "Be brief."}
    write_tasks(case, says=shots)
    case.change(tasks={"says": {"type": "lm_eval", "path": "tasks/says.yaml", "shots": 2, "prompts": 3}})
    config = load_config(case.config, EvalConfig)
    task: Any = config.tasks["says"]
    from posttrain.evaluate.harness import HarnessTask

    read = HarnessTask.load(task.task(), task.path, task.shots, task.prompts)
    asked = read.asked()
    assert len(asked.prompts) == len(read.chosen) == 3
    assert [[turn.role for turn in prompt.messages] for prompt in asked.prompts] == [
        ["system", "user", "assistant", "user", "assistant", "user"]
    ] * 3
    last = [prompt.messages[-1].content for prompt in asked.prompts]
    assert last == [QUESTIONS[place]["prompt"] for place in read.chosen]
    assert asked.sampling == {"stop": ("e",), "temperature": 0.0, "max_new_tokens": 5}


@needs_lm_eval
def test_nothing_is_asked_twice(case: Case, run: Callable[..., Result]) -> None:
    write_tasks(case, says=SAYS_A)
    run(case.config)
    kept = case.kept("answers")
    assert "all answers are there" in run(case.config, "--dry-run").output
    run(case.config)
    assert case.kept("answers") == kept


@needs_lm_eval
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"output_type": "loglikelihood"}, "output_type is loglikelihood"),
        ({"repeats": 3}, "repeats"),
        ({"gen_prefix": "The answer is"}, "gen_prefix"),
        ({"generation_kwargs": {"until": ["e"], "num_beams": 4}}, "num_beams"),
        ({"doc_to_text": "{{nowhere.there}}"}, "lm_eval cannot"),
        ({"metric_list": [{"metric": "bleu"}]}, "number"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    changes: dict[str, Any], words: str, case: Case, run: Callable[..., Result]
) -> None:
    write_tasks(case, says={**SAYS_A, **changes})
    assert words in run(case.config, expect=2).output.replace("\n", " ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("task: [a, b]", "one by one"),
        ("group: a\ntask: b", "group"),
        ("include: other.yaml\ntask: a", "include"),
        ("task: a\ndataset_path: gsm8k", "local files"),
        ("task: a\ndataset_path: json", "data_files"),
        ("task: a\ndataset_path: json\ndataset_kwargs: {data_files: nowhere.jsonl}", "nowhere.jsonl"),
        ("task: a\nprocess_docs: !function utils.run", "line 2: !function utils.run"),
        ("- task: a", "no key"),
        ("task: a: b", "is not a task"),
    ],
)
def test_a_file_that_needs_code_a_network_or_other_files_is_refused_before_it_is_loaded(
    text: str, words: str, case: Case
) -> None:
    (case.folder / "task.yaml").write_text(text)
    case.change(tasks={"one": {"type": "lm_eval", "path": "task.yaml"}})
    task: Any = load_config(case.config, EvalConfig).tasks["one"]
    with pytest.raises((ConfigError, DataError), match=words):
        task.task()


def test_without_the_package_the_extra_is_named(case: Case, run: Callable[..., Result]) -> None:
    from importlib.util import find_spec

    write_tasks(case, says=SAYS_A)
    if find_spec("lm_eval") is None:
        assert "lm-eval" in run(case.config, expect=2).output
    else:
        assert "says" in run(case.config, "--dry-run").output
