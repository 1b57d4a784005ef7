"""What models came to in tasks: estimates with intervals, and comparisons with the baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from posttrain.errors import RunError
from posttrain.evaluate.statistics.comparison import Comparison, compare
from posttrain.evaluate.statistics.estimate import Estimate, estimate
from posttrain.evaluate.statistics.scores import Scale
from posttrain.evaluate.tasks.base import Measured


@dataclass(frozen=True)
class MeasureResult:
    """One measure of a task.

    Attributes:
        estimates: by model.
        comparisons: by model, with the baseline; models that cannot be compared are missing.
    """

    scale: Scale
    estimates: Mapping[str, Estimate]
    comparisons: Mapping[str, Comparison]


@dataclass(frozen=True)
class TaskResult:
    """One task, with its measures in the order of their importance.

    Attributes:
        facts: further numbers by model, such as the share of answers that were cut.
        failures: why a model has no result, by model.
        samples: a few prompts with their answers, by model.
    """

    measures: Mapping[str, MeasureResult]
    facts: Mapping[str, Mapping[str, float]]
    failures: Mapping[str, str]
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """All tasks of an evaluation.

    Attributes:
        models: what each name stands for, in the order of the config.
        weights: hash of the weights of each model on this machine.
    """

    models: Mapping[str, str]
    baseline: str
    tasks: Mapping[str, TaskResult]
    weights: Mapping[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> list[str]:
        """One line for each task that has no result for a model."""
        return [
            f"{name}, {model}: {reason}" for name, task in self.tasks.items() for model, reason in task.failures.items()
        ]

    def as_json(self) -> dict[str, Any]:
        """The results as JSON can hold them."""
        return asdict(self)

    @classmethod
    def read(cls, path: Path) -> "Results":
        """What was written as `as_json`; RunError if the file is damaged."""
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise RunError(f"{path} is damaged; run the evaluation again") from error


def task_result(
    measured: Mapping[str, Measured], failures: Mapping[str, str], baseline: str, max_ungraded_share: float
) -> TaskResult:
    """Estimate and compare the models that were measured in one task.

    Args:
        failures: why others were not, by model.
    """
    failed, usable = dict(failures), {}
    for model, each in measured.items():
        share = _ungraded_share(each)
        if share > max_ungraded_share:
            failed[model] = (
                f"{share:.1%} of the answers have no grade, more than max_ungraded_share: {max_ungraded_share:g}"
            )
        else:
            usable[model] = each
    names = list(dict.fromkeys(name for each in usable.values() for name in each.scores))
    return TaskResult(
        measures={name: _measure(name, usable, baseline) for name in names},
        facts={model: each.facts for model, each in measured.items()},
        failures=failed,
        samples={model: each.samples for model, each in measured.items()},
    )


def _measure(name: str, measured: Mapping[str, Measured], baseline: str) -> MeasureResult:
    own = {model: each for model, each in measured.items() if name in each.scores}
    estimates = {model: estimate(each.scores[name], each.clusters) for model, each in own.items()}
    comparisons: Mapping[str, Comparison] = {}
    if baseline in own:
        base = own[baseline]
        others = {
            model: each.scores[name]
            for model, each in own.items()
            if model != baseline and each.comparable == base.comparable
        }
        comparisons = compare(others, base.scores[name], base.clusters) if others else {}
    return MeasureResult(next(iter(own.values())).scores[name].scale, estimates, comparisons)


def _ungraded_share(measured: Measured) -> float:
    """The share of answers without a grade, by the most important measure."""
    first = next(iter(measured.scores.values()))
    return first.ungraded / max(1, measured.answers)
