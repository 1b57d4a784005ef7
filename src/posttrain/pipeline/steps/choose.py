"""Step `choose`: of one step's models, trained with several settings and seeds, the best one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, JsonValue

from posttrain.base.files import atomic_write_text
from posttrain.base.intervals.student import half_width
from posttrain.base.text import counted
from posttrain.config.strict import StrictModel
from posttrain.config.values import OneLine
from posttrain.errors import RunError
from posttrain.evaluate.scores_file import read_scores
from posttrain.evaluate.statistics.comparison import compare
from posttrain.evaluate.statistics.estimate import Clusters
from posttrain.evaluate.statistics.scores import Scores
from posttrain.pipeline.steps.base import Job, Model, StepConfig
from posttrain.pipeline.steps.decide import require_task

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context

_CHOICE = "choice.json"
COLUMNS = ["settings", "mean", "± over seeds", "seeds", "difference to the best", "p", "verdict", "seconds"]
WORDS = frozenset({"difference to the best", "verdict"})
NOT_TOLD_APART = ("not told apart", "too few prompts")


class Cell(StrictModel):
    """One combination of settings with one seed."""

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Values of the config's keys."""

    seed: int
    """The training's seed."""

    @property
    def point(self) -> str:
        """The settings without the seed, in words."""
        shown = ", ".join(f"{key.rsplit('.', 1)[-1]} {value}" for key, value in self.settings.items())
        return shown or "as in the config"


class ChooseStep(StepConfig):
    """Takes the best of several models; written by `sweep`."""

    run: Literal["choose"]
    """Take the best model."""

    of: OneLine
    """The evaluation of all cells."""

    cells: dict[str, Cell]
    """The cells, by their steps."""

    task: OneLine
    """The task by which they are compared."""

    measure: OneLine | None = None
    """The measure of the task; its first one by default."""

    @property
    def starts_from(self) -> str | None:
        """A cell, each of which starts from the same model."""
        return next(iter(self.cells))

    @property
    def needs(self) -> tuple[str, ...]:
        """The cells and their evaluation."""
        return (*self.cells, self.of)

    def job(self, name: str, context: "Context") -> Job:
        """Check that the evaluation has the task and the measure; ConfigError if not."""
        require_task(name, self.of, self.task, self.measure, context)
        return Job({"run": "choose", "task": self.task, "measure": self.measure})

    def make(self, folder: Path, context: "Context") -> None:
        """Compare the settings, and write `choice.json`; RunError if none has results, or the measure is not there."""
        there = [name for name in self.cells if name not in context.skipped]
        if not there:
            raise RunError("no cell was trained")
        results = context.step_folder(self.of)
        scores = {name: self._scores(results, name) for name in there}
        _, clusters = read_scores(results, there[0], self.task)
        seconds = {name: _seconds(context.step_folder(name)) for name in there}
        points = {name: self.cells[name].point for name in there}
        found = compared_settings(points, scores, seconds, clusters)
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(folder / _CHOICE, json.dumps(found, indent=2, ensure_ascii=False) + "\n")

    def _scores(self, results: Path, name: str) -> Scores:
        scores, _ = read_scores(results, name, self.task)
        measure = self.measure or next(iter(scores))
        if measure not in scores:
            raise RunError(f"{self.task} has no measure {measure!r}, only {', '.join(scores)}")
        return scores[measure]

    def outputs(self, folder: Path) -> list[Path]:
        """The choice."""
        return [folder / _CHOICE]

    def digest(self, folder: Path, context: "Context") -> str | None:
        """That of the winner: other numbers change nothing for the steps that start from here."""
        return context.digest(choice(folder)["winner"])

    def model(self, folder: Path, context: "Context") -> Model:
        """The best model; before the choice, that of the first cell."""
        there = (folder / _CHOICE).is_file()
        return context.model(choice(folder)["winner"] if there else next(iter(self.cells)))


def compared_settings(
    points: Mapping[str, str],
    scores: Mapping[str, Scores],
    seconds: Mapping[str, float],
    clusters: Clusters | None = None,
) -> dict[str, Any]:
    """The settings with their means over the seeds, each compared with the best prompt by prompt, and the best cell.

    Args:
        points: the settings of each cell, in words.
        seconds: how long each cell was trained.
        clusters: the group of each prompt, if prompts resemble each other.
    """
    is_loss = next(iter(scores.values())).scale == "loss"
    cells: dict[str, list[str]] = {}
    for name, point in points.items():
        cells.setdefault(point, []).append(name)
    together = {point: over_seeds([scores[name] for name in names]) for point, names in cells.items()}
    best = _best({point: mean_of(each) for point, each in together.items()}, is_loss)
    compared = compare({point: each for point, each in together.items() if point != best}, together[best], clusters)
    rows: list[dict[str, Any]] = []
    for point, names in cells.items():
        row = {
            "settings": point,
            "mean": mean_of(together[point]),
            "half_width": half_width([mean_of(scores[name]) for name in names]),
            "seeds": len(names),
            "seconds": fmean(seconds[name] for name in names),
        }
        if point in compared:
            each = compared[point]
            row |= {"difference": each.difference.value, "p": each.adjusted_p, "verdict": each.verdict}
        rows.append(row)
    winner = _best({name: mean_of(scores[name]) for name in cells[best]}, is_loss)
    return {"winner": winner, "best": best, "rows": rows, "sentence": _sentence(rows, best, winner)}


def choice(folder: Path) -> dict[str, Any]:
    """What was chosen, and the table."""
    return json.loads((folder / _CHOICE).read_text(encoding="utf-8"))


def table_rows(found: Mapping[str, Any]) -> Iterator[list[str]]:
    """The settings as rows of a table with `COLUMNS`."""
    for row in found["rows"]:
        half, difference = row["half_width"], row.get("difference")
        yield [
            row["settings"],
            f"{row['mean']:.4f}",
            "" if half is None else f"{half:.4f}",
            str(row["seeds"]),
            "" if difference is None else f"{difference:+.4f}",
            "" if difference is None else f"{row['p']:.2g}",
            "best" if row["settings"] == found["best"] else row.get("verdict", ""),
            f"{row['seconds']:.0f}",
        ]


def over_seeds(scores: Sequence[Scores]) -> Scores:
    """Each prompt's mean over the seeds; a prompt that one of them has no value for has none."""
    first = scores[0]
    values = {}
    for prompt in first.values:
        of_prompt = [each.values[prompt] for each in scores]
        there = [value for value in of_prompt if value is not None]
        values[prompt] = fmean(there) if len(there) == len(of_prompt) else None
    return Scores(values=values, ungraded=sum(each.ungraded for each in scores), scale=first.scale)


def mean_of(scores: Scores) -> float:
    """The mean over the prompts that have a value; RunError if none has."""
    there = [value for value in scores.values.values() if value is not None]
    if not there:
        raise RunError("no answer was graded")
    return fmean(there)


def _best(means: Mapping[str, float], is_loss: bool) -> str:
    return (min if is_loss else max)(means, key=lambda name: means[name])


def _seconds(run: Path) -> float:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))["seconds"]


def _sentence(rows: Sequence[Mapping[str, Any]], best: str, winner: str) -> str:
    alike = [row for row in rows if row.get("verdict") in NOT_TOLD_APART or row["settings"] == best]
    told = f"the best settings are {best}, and {winner} is taken"
    if len(alike) > 1:
        cheapest = min(alike, key=lambda row: row["seconds"])
        others = counted(len(alike) - 1, "other")
        told += f"; {others} cannot be told apart from them, and the cheapest is {cheapest['settings']}"
    if all(row["seeds"] == 1 for row in rows):
        told += "; with one seed it is not known how much of the differences is chance"
    return told
