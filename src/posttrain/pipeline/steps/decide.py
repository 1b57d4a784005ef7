"""Step `decide`: take a model if it is better than another one, or keep the other."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from posttrain.base.files import atomic_write_text
from posttrain.config.values import OneLine
from posttrain.errors import ConfigError, RunError
from posttrain.evaluate.scores_file import read_scores
from posttrain.evaluate.statistics.comparison import Comparison, compare
from posttrain.pipeline.steps.base import Job, Model, StepConfig
from posttrain.pipeline.steps.eval import EvalStep

if TYPE_CHECKING:
    from posttrain.pipeline.context import Context

Outcome = Literal["taken", "kept", "not told apart"]
_DECISION = "decision.json"


class DecideStep(StepConfig):
    """Compares two models of an `eval` step; steps that start from this one get the winner's model."""

    run: Literal["decide"]
    """Choose between two models."""

    of: OneLine
    """The `eval` step."""

    take: OneLine
    """The step whose model is taken if it is better."""

    over: OneLine
    """The step whose model is kept otherwise, or `base`."""

    task: OneLine
    """The task by which they are compared."""

    measure: OneLine | None = None
    """The measure of the task; its first one by default."""

    by: float = Field(default=0.0, ge=0)
    """How much better the model must be."""

    @property
    def starts_from(self) -> str | None:
        """The model that would be taken."""
        return self.take

    @property
    def needs(self) -> tuple[str, ...]:
        """The `eval` step and the models."""
        return tuple(dict.fromkeys((self.take, *([] if self.over == "base" else [self.over]), self.of)))

    def renamed(self, names: Mapping[str, str]) -> Self:
        """The step with other names for the evaluation and the models."""
        return self.model_copy(update={key: names.get(name, name) for key, name in self._named().items()})

    def _named(self) -> dict[str, str]:
        return {"of": self.of, "take": self.take, "over": self.over}

    def job(self, name: str, context: "Context") -> Job:
        """Check that both models are measured by the task; ConfigError if not."""
        labels = self._labels(name, context)
        require_task(name, self.of, self.task, self.measure, context)
        key = {"run": "decide", "task": self.task, "measure": self.measure, "by": self.by}
        return Job({**key, "take": [self.take, labels[0]], "over": [self.over, labels[1]]})

    def _labels(self, name: str, context: "Context") -> tuple[str, str]:
        """The names of both models in the evaluation; ConfigError if it does not measure them."""
        measured = getattr(context.steps[self.of], "models", None)
        if measured is None:
            raise ConfigError(f"steps.{name}.of: {self.of} is no eval step")
        if self.of in context.skipped:
            raise ConfigError(f"steps.{name}.of: {self.of} is skipped, so there is nothing to decide; skip {name} too")
        by_step = {step: label for label, step in measured.items()}
        for key, step in (("take", self.take), ("over", self.over)):
            if step not in by_step:
                raise ConfigError(f"steps.{name}.{key}: {self.of} does not measure {step}; add it to its models")
            if step in context.skipped:
                raise ConfigError(
                    f"steps.{name}.{key}: {step} is skipped, so there is nothing to decide; skip {name} too"
                )
        return by_step[self.take], by_step[self.over]

    def make(self, folder: Path, context: "Context") -> None:
        """Compare, and write `decision.json`.

        Raises:
            RunError: the evaluation has no such task or measure, or a model has no result.
        """
        labels = self._labels(folder.name, context)
        results = context.step_folder(self.of)
        (take, clusters), (over, _) = (read_scores(results, label, self.task) for label in labels)
        measure = self.measure or next(iter(take))
        if measure not in take or measure not in over:
            raise RunError(f"{self.task} has no measure {measure!r} for both {self.take} and {self.over}")
        compared = compare({self.take: take[measure]}, over[measure], clusters)[self.take]
        outcome = self._outcome(compared, take[measure].scale == "loss")
        winner = self.take if outcome == "taken" else self.over
        found = {"outcome": outcome, "winner": winner, "sentence": self._sentence(compared, outcome, measure)}
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(folder / _DECISION, json.dumps(found, indent=2) + "\n")

    def _outcome(self, compared: Comparison, is_loss: bool) -> Outcome:
        value = compared.difference.value or 0.0
        if compared.verdict == "better" and (-value if is_loss else value) >= self.by:
            return "taken"
        return "kept" if compared.verdict in ("better", "worse") else "not told apart"

    def _sentence(self, compared: Comparison, outcome: Outcome, measure: str) -> str:
        difference = compared.difference
        if difference.value is None or difference.low is None or difference.high is None:
            return f"{self.take} and {self.over} cannot be compared: no prompt was graded for both"
        told = f"{difference.value:+.3f} ({difference.low:+.3f} to {difference.high:+.3f})"
        verdict = f"{compared.verdict}, p = {compared.adjusted_p:.2g}, {difference.prompts:,} prompts"
        ends = {
            "taken": f"so {self.take} is taken",
            "kept": f"so {self.over} is kept",
            "not told apart": f"so {self.over} is kept",
        }
        return f"{self.take} against {self.over} by {self.task} ({measure}): {told}, {verdict}; {ends[outcome]}"

    def outputs(self, folder: Path) -> list[Path]:
        """The decision."""
        return [folder / _DECISION]

    def digest(self, folder: Path, context: "Context") -> str | None:
        """That of the winner: another p-value changes nothing for the steps that start from here."""
        winner = decision(folder)["winner"]
        return context.digest(winner) if winner != "base" else "base"

    def model(self, folder: Path, context: "Context") -> Model:
        """The winner's model; before the decision, that of `take`."""
        return context.model(decision(folder)["winner"] if (folder / _DECISION).is_file() else self.take)


def require_task(name: str, of: str, task: str, measure: str | None, context: "Context") -> None:
    """Raise ConfigError if the `eval` step `of` has no such task or measure; `name` is the step that asks for it."""
    evaluation = context.steps[of]
    tasks = evaluation.tasks(of, context) if isinstance(evaluation, EvalStep) else {}
    if task not in tasks:
        raise ConfigError(f"steps.{name}: {of} has no task {task!r}, only {', '.join(tasks)}")
    measures = tasks[task].measures
    if measure is not None and not any(fnmatchcase(measure, each) for each in measures):
        raise ConfigError(f"steps.{name}.measure: {task} has no measure {measure!r}, only {', '.join(measures)}")


def decision(folder: Path) -> dict[str, Any]:
    """What a step decided."""
    return json.loads((folder / _DECISION).read_text(encoding="utf-8"))
