"""Resolve the grader names of data sets and stages, and check that graders and data fit."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, ValidationError
from pydantic_core import InitErrorDetails

from posttrain.config.keys import KeyPath
from posttrain.config.values import OneLine
from posttrain.dataserver.config.datasets import GradedDataset, GradingOverride, TaskGrading
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.graders.catalogue import AnyGrader, built_in_graders


class Fault(NamedTuple):
    """What is wrong with one key, given by its path within the section being checked."""

    path: KeyPath
    value: object
    reason: str


def refuse(faults: Iterable[Fault]) -> None:
    """Raise a ValidationError with all faults, each at its own key, if there are any."""
    errors = [
        InitErrorDetails(type="value_error", loc=fault.path, input=fault.value, ctx={"error": ValueError(fault.reason)})
        for fault in faults
    ]
    if errors:
        raise ValidationError.from_exception_data("config", errors)


def find_grader(name: str, graders: Mapping[str, Grader]) -> Grader:
    """The grader `name` of the config, or else the built-in one of that type with its defaults.

    Raises:
        ValueError: there is none, or the built-in one needs parameters.
    """
    if name in graders:
        return graders[name]
    built_in = built_in_graders().get(name)
    if built_in is None:
        near = get_close_matches(name, [*graders, *built_in_graders()], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no grader {name!r} in the section graders, and no built-in one{hint}")
    try:
        return built_in.model_validate({"type": name})
    except ValidationError as error:
        wanted = ", ".join(str(problem["loc"][-1]) for problem in error.errors() if problem["loc"])
        raise ValueError(
            f"the built-in grader {name} needs parameters{f' ({wanted})' if wanted else ''}; define it in the section "
            f"graders with type: {name}"
        ) from None


def _require_free_names(graders: dict[str, Grader]) -> dict[str, Grader]:
    """Refuse names that belong to a built-in grader of another type."""
    refuse(
        Fault((name,), name, f"{name} is the name of a built-in grader; choose another name")
        for name, grader in graders.items()
        if (built_in := built_in_graders().get(name)) is not None and not isinstance(grader, built_in)
    )
    return graders


NamedGraders = Annotated[dict[OneLine, AnyGrader], AfterValidator(_require_free_names)]
"""The section `graders` of a config: graders with parameters of their own, by name."""


@dataclass(frozen=True)
class GraderCheck:
    """Checks that data sets and stages name graders that exist and find what they need in the data."""

    graders: Mapping[str, Grader]
    """The section `graders`."""

    code_may_run: bool

    def dataset_faults(self, datasets: Mapping[str, GradedDataset]) -> Iterator[Fault]:
        """Faults in the graders of the data sets."""
        for name, dataset in datasets.items():
            yield from self._faults((name,), dataset, dataset)
            for task, grading in dataset.grading_by_task.items():
                yield from self._faults((name, "tasks", task), grading, dataset)

    def stage_faults(
        self,
        index: int,
        grading: Mapping[str, GradingOverride],
        mix: Mapping[str, float],
        datasets: Mapping[str, GradedDataset],
    ) -> Iterator[Fault]:
        """Faults in the section `grading` of a stage."""
        for name, override in grading.items():
            path: KeyPath = (index, "grading", name)
            if name not in datasets:
                yield Fault(path, name, f"there is no data set {name!r}; known: {', '.join(datasets)}")
            elif not mix.get(name):
                yield Fault(path, name, f"the stage draws nothing from {name!r}; add it to the mix, or remove this")
            else:
                yield from self._faults(path, override, datasets[name])
                known = datasets[name].grading_by_task
                for task, changed in override.tasks.items():
                    if task in known:
                        yield from self._faults((*path, "tasks", task), changed, datasets[name])
                    else:
                        reason = f"{name} has no task {task!r}; its tasks: {', '.join(known) or 'none'}"
                        yield Fault((*path, "tasks", task), task, reason)

    def _faults(
        self, path: KeyPath, named_in: GradedDataset | GradingOverride | TaskGrading, dataset: GradedDataset
    ) -> Iterator[Fault]:
        places: list[KeyPath] = [("graders", name) for name in named_in.graders or ()]
        places += [("gates", number) for number in range(len(named_in.gates or ()))]
        for place, name in zip(places, (*(named_in.graders or ()), *(named_in.gates or ())), strict=True):
            reason = self._misfit(name, dataset)
            if reason:
                yield Fault((*path, *place), name, reason)

    def _misfit(self, name: str, dataset: GradedDataset) -> str:
        try:
            grader = find_grader(name, self.graders)
        except ValueError as error:
            return str(error)
        if grader.needs_tags and dataset.reasoning is None:
            return f"the grader {name} needs the data set's `reasoning` section (its tags)"
        if grader.needs_gold and dataset.gold_is_missing:
            return f"the grader {name} compares with the gold answer, but `gold` is null"
        if grader.needs_code_execution and not self.code_may_run:
            return f"the grader {name} runs code that a model wrote; set allow_code_execution: true first"
        return ""
