"""What a model got for each prompt, with answers that could not be graded counted rather than taken as 0."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

Scale = Literal["reward", "loss"]
"""A reward is in [0, 1], and more is better; a loss is any number, and less is better."""


@dataclass(frozen=True)
class Scores:
    """One model's value for each prompt, by the prompt's name; None where no answer was graded.

    Attributes:
        ungraded: the number of answers without a grade.

    Raises:
        ValueError: a reward is not in [0, 1].
    """

    values: Mapping[str, float | None]
    ungraded: int
    scale: Scale = "reward"

    def __post_init__(self) -> None:
        if self.scale == "reward":
            for name, value in self.values.items():
                if value is not None and not 0 <= value <= 1:
                    raise ValueError(f"prompt {name}: the reward {value} is not between 0 and 1")


def scores_of_answers(
    answers: Mapping[str, Sequence[float | None]],
    scale: Scale = "reward",
    value: Callable[[Sequence[float]], float | None] = fmean,
) -> Scores:
    """The scores of one or more answers to each prompt, None for an answer without a grade.

    Args:
        value: a prompt's value from its graded answers, such as their mean; None if there are too few of them.
    """
    graded = {name: [each for each in found if each is not None] for name, found in answers.items()}
    return Scores(
        {name: value(found) if found else None for name, found in graded.items()},
        sum(len(found) - len(graded[name]) for name, found in answers.items()),
        scale,
    )
