"""Results as tables, for the terminal and in Markdown."""

from collections.abc import Collection, Iterator

from rich.table import Table

from posttrain.base.console import new_table
from posttrain.evaluate.results import MeasureResult, Results, TaskResult
from posttrain.evaluate.statistics.comparison import Comparison
from posttrain.evaluate.statistics.estimate import Estimate
from posttrain.evaluate.statistics.scores import Scale

NONE = "–"
_COLUMNS = ("model", "measure", "value", "95 % interval", "difference", "its interval", "p")
LONG = (*_COLUMNS, "test", "verdict", "could be told", "prompts", "no grade")
WORDS = frozenset({"measure", "test", "verdict"})
# Each grader's mean is in comparison.md alone.
_DETAILS = "graders/"


def result_tables(results: Results) -> list[Table]:
    """A table for each task and measure; differences are to the baseline, which has none."""
    return [
        _table(results, f"{name}: {_summary(result, results.baseline)}", measure, result)
        for name, task in results.tasks.items()
        for measure, result in task.measures.items()
        if not measure.startswith(_DETAILS)
    ]


def _table(results: Results, title: str, measure: str, result: MeasureResult) -> Table:
    table = new_table(
        title, "model", f"{measure} (95 % interval)", "difference (95 %)", "p", "verdict", words=["verdict"]
    )
    for model in results.models:
        if model in result.estimates:
            cells = _cells(result, model)
            value, difference = (
                f"{cells[name]} ({cells[interval]})" if cells[name] else ""
                for name, interval in (("value", "95 % interval"), ("difference", "its interval"))
            )
            table.add_row(model, value, difference, cells["p"], cells["verdict"])
    return table


def markdown(results: Results) -> str:
    """All tables with every column, and what each model is."""
    lines = ["# Evaluation", "", *(f"- **{name}**: {what}" for name, what in results.models.items()), ""]
    for name, task in results.tasks.items():
        lines += [f"## {name}", ""]
        lines += [f"| {' | '.join(LONG)} |", f"|{'---|' * len(LONG)}"]
        rows = ([row[column].replace("|", r"\|") for column in LONG] for row in task_rows(results, task))
        lines += [f"| {' | '.join(cells)} |" for cells in rows]
        lines += [*(f"\n{model} failed: {reason}" for model, reason in task.failures.items()), ""]
    return "\n".join(lines).rstrip() + "\n"


def _summary(result: MeasureResult, baseline: str) -> str:
    """How many prompts there are, and what would have been told."""
    told = [f"{max(each.prompts for each in result.estimates.values()):,} prompts", f"baseline {baseline}"]
    smallest = [each.smallest for each in result.comparisons.values() if each.smallest is not None]
    if smallest:
        told.append(f"a difference of {shown(max(smallest), result.scale)} could be told")
    return ", ".join(told)


def task_rows(results: Results, task: TaskResult, left_out: Collection[str] = ()) -> Iterator[dict[str, str]]:
    """The cells of each row of a task's table, by column; models that were `left_out` have an empty row."""
    for measure, result in task.measures.items():
        for model in results.models:
            if model in result.estimates:
                yield {"model": model, "measure": measure, **_cells(result, model)}
    for model in task.failures:
        yield {**dict.fromkeys(LONG, NONE), "model": model, "verdict": "failed"}
    for model in left_out:
        yield {**dict.fromkeys(LONG, NONE), "model": model, "verdict": "left out"}


def _cells(result: MeasureResult, model: str) -> dict[str, str]:
    scale, estimate = result.scale, result.estimates[model]
    compared = result.comparisons.get(model)
    return {
        "value": _value(estimate, scale),
        "95 % interval": _interval(estimate, scale),
        **_difference(compared, scale),
        "prompts": f"{estimate.prompts:,}" + (f" in {estimate.clusters:,}" if estimate.clusters is not None else ""),
        "no grade": f"{estimate.ungraded:,}",
    }


def _difference(compared: Comparison | None, scale: Scale) -> dict[str, str]:
    if compared is None:
        return dict.fromkeys(("difference", "its interval", "p", "test", "verdict", "could be told"), "")
    smallest = compared.smallest
    return {
        "difference": _value(compared.difference, scale, signed=True),
        "its interval": _interval(compared.difference, scale, signed=True),
        "p": f"{compared.adjusted_p:.2g}" if compared.adjusted_p >= 0.0001 else "<0.0001",
        "test": compared.test,
        "verdict": compared.verdict,
        "could be told": NONE if smallest is None else shown(smallest, scale),
    }


def _value(estimate: Estimate, scale: Scale, *, signed: bool = False) -> str:
    return NONE if estimate.value is None else shown(estimate.value, scale, signed=signed)


def _interval(estimate: Estimate, scale: Scale, *, signed: bool = False) -> str:
    if estimate.low is None or estimate.high is None:
        return NONE
    low, high = (shown(each, scale, signed=signed) for each in (estimate.low, estimate.high))
    return f"{low.removesuffix('%')} to {high}"


def shown(value: float, scale: Scale, *, signed: bool = False) -> str:
    """A reward as a percentage, a loss in nats."""
    sign = "+" if signed else ""
    return f"{value:{sign}.1%}" if scale == "reward" else f"{value:{sign}.3f}"
