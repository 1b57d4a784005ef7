"""The report of an evaluation as a page, and its sections for other reports."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.evaluate.results import Results, TaskResult
from posttrain.evaluate.tables import LONG, WORDS, task_rows
from posttrain.report.page import Comparison, Facts, Paragraph, Section, Table, write_page

_TONES = {"better": "good", "worse": "bad"}
_READING = (
    "Each value is a mean over prompts with its 95 % interval. Differences are to the baseline, prompt by prompt; p is "
    "adjusted for the number of models (Holm). The column 'could be told' has the smallest difference that would have "
    "been found in 80 % of such comparisons."
)


def write_report(results: Results, path: Path) -> None:
    """Write the page."""
    write_page(path, "Evaluation", list(evaluation_sections(results)))


def evaluation_sections(results: Results, left_out: Collection[str] = ()) -> Iterator[Section]:
    """The verdicts, the tables, and a few prompts with all models' answers.

    Args:
        left_out: models that were not measured, and have empty rows.
    """
    yield Section("Verdicts", [*verdicts(results), Facts({**results.models, "baseline": results.baseline})])
    for name, task in results.tasks.items():
        rows = [[row[column] for column in LONG] for row in task_rows(results, task, left_out)]
        failures = [Paragraph(f"{model} failed: {reason}", "bad") for model, reason in task.failures.items()]
        yield Section(name, [Table(LONG, rows, words=WORDS), *failures, *_facts(task)])
    yield Section("How to read this", [Paragraph(_READING)])
    for name, task in results.tasks.items():
        yield Section(f"{name}: answers", list(_side_by_side(results, task)))


def verdicts(results: Results) -> Iterator[Paragraph]:
    """A sentence for each model and task, by the task's most important measure."""
    for name, task in results.tasks.items():
        for measure, result in list(task.measures.items())[:1]:
            for model, compared in result.comparisons.items():
                text = f"{name}: {model} is {compared.verdict} than {results.baseline} by {measure}"
                if compared.verdict not in _TONES:
                    text = f"{name}: {model} and {results.baseline}: {compared.verdict}"
                yield Paragraph(text, _TONES.get(compared.verdict, ""))


def _facts(task: TaskResult) -> Iterator[Table]:
    names = list(dict.fromkeys(name for facts in task.facts.values() for name in facts))
    if names:
        rows = [
            [model, *(_fact(name, facts.get(name)) for name in names)] for model, facts in task.facts.items() if facts
        ]
        yield Table(["model", *names], rows)


def _fact(name: str, value: float | None) -> str:
    return "" if value is None else f"{value:.1f}" if name == "tokens" else f"{value:.1%}"


def _side_by_side(results: Results, task: TaskResult) -> Iterator[Comparison]:
    by_prompt: dict[str, dict[str, Mapping[str, Any]]] = {}
    for model in results.models:
        for sample in task.samples.get(model, ()):
            by_prompt.setdefault(sample["id"], {}).setdefault(model, sample)
    for answers in by_prompt.values():
        first = next(iter(answers.values()))
        note = "" if first["gold"] is None else f"right answer: {first['gold']}"
        shown = {model: (sample["completion"], _reward(sample["reward"])) for model, sample in answers.items()}
        yield Comparison(first["prompt"], note, shown)


def _reward(value: float | None) -> str:
    return "no grade" if value is None else f"{value:.2f}"
