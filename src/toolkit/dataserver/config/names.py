"""What a grader's name in a data set or stage means, and whether the two fit."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from pydantic import ValidationError

from toolkit.dataserver.config.datasets import GradedDataset
from toolkit.dataserver.config.grading import GradingOverride
from toolkit.dataserver.graders.base import Grader
from toolkit.dataserver.graders.catalogue import built_in_graders


def find_grader(name: str, graders: Mapping[str, Grader]) -> Grader:
    """The grader of that name in the config, or else the built-in one of that type with its defaults.

    Raises:
        ValueError: there is none, or it does nothing without parameters.
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


def check_dataset_graders(datasets: Mapping[str, GradedDataset], graders: Mapping[str, Grader]) -> None:
    """Raise ValueError unless every data set's graders are there and find in it what they need."""
    for name, dataset in datasets.items():
        _check(f"datasets.{name}", [*dataset.graders, *dataset.gates], dataset, graders)


def check_stage_graders(
    stage: str,
    overrides: Mapping[str, GradingOverride],
    datasets: Mapping[str, GradedDataset],
    graders: Mapping[str, Grader],
) -> None:
    """Raise ValueError unless a stage's overrides name data sets, and graders that fit them."""
    for name, override in overrides.items():
        if name not in datasets:
            known = ", ".join(datasets)
            raise ValueError(f"stage {stage!r}: grading names {name!r}, which is no data set; known: {known}")
        _check(
            f"stage {stage!r}, {name}", [*(override.graders or ()), *(override.gates or ())], datasets[name], graders
        )


def _check(place: str, names: Iterable[str], dataset: GradedDataset, graders: Mapping[str, Grader]) -> None:
    for name in names:
        try:
            grader = find_grader(name, graders)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        if grader.needs_tags and dataset.reasoning is None:
            raise ValueError(f"{place}: the grader {name} needs the data set's `reasoning` section (its tags)")
        if grader.needs_gold and dataset.gold_is_missing:
            raise ValueError(f"{place}: the grader {name} compares with the gold answer, but `gold` is null")
